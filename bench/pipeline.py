"""Pipelines: what the executor costs per action, predicted against measured bubbles with stages that sleep, a step on two ranks
against torch.distributed.pipelining, and the peak of activations against `plan`.

    python bench/pipeline.py [executor] [bubble] [step] [memory]      (default: all; results are kept only of all)

Against PyTorch two ranks with one thread each, runs taking turns (PyTorch, pharos, …); the first two steps of each are left out.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import common
import parallel

ROUNDS, STEPS, WARM_UP, RANKS = 4, 6, 2, 2
MICRO_BATCH, GLOBAL_BATCH = 2, 16
STEP_SCHEDULES = ("1f1b", "zb1p")
MEMORY_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb1p", "zbv", "dualpipev")
MEMORY_SIZES = {"num_layers": 8, "hidden_size": 256, "num_attention_heads": 4, "ffn_hidden_size": 688}
PROGRAMS = common.ROOT / "build" / "release" / "bench"


def executor():
    """(rows, bounds, details): microseconds per action; on two ranks most of them pass in waiting for the other one."""
    command = [PROGRAMS / "pipeline_bench", "--benchmark_format=json", "--benchmark_repetitions=3"]
    found = json.loads(common.run(*command, "--benchmark_report_aggregates_only=true").output)["benchmarks"]
    found = [one for one in found if one["aggregate_name"] == "median"]
    costs = {one["run_name"].split("/iterations")[0]: one["per_action"] * 1e6 for one in found}
    rows = [(f"executor, {name}", f"{cost:.2f} us per action") for name, cost in costs.items()]
    for one in found:
        if one["run_name"].startswith("two_ranks"):
            name = one["run_name"].split("/iterations")[0]
            rows.append((f"executor, {name}, CPU of a rank's thread", f"{one['cpu_time'] * 1e3 / one['actions']:.2f} us per action"))
    own = max(cost for name, cost in costs.items() if name.startswith("one_rank"))
    return rows, [common.Bound("executor per action, us", own, 20)], {"us_per_action": costs}


def bubble():
    program = PROGRAMS / "pipeline_bubble"
    found = common.last_json(subprocess.run([program, "--scale", "2"], capture_output=True, text=True, check=False).stdout)
    rows = []
    for one in found["results"]:
        text = f"predicted {one['predicted_percent']:.1f} %, measured {one['measured_percent']:.1f} %, span {one['measured_span_ms']:.0f} ms"
        rows.append((f"bubble, {one['costs']}, {one['schedule']}, {one['microbatches']} microbatches", text))
    bounds = [
        common.Bound("bubble, predicted and measured, points", found["worst_difference_points"], 3),
        common.Bound("span, ZBV and DualPipeV / 1F1B", found["zbv_and_dualpipev_span_of_1f1b"], 1),
    ]
    return rows, bounds, found


def pipelined(schedule):
    return [f"model.pipeline_model_parallel_size={RANKS}", f"model.pipeline_schedule={schedule}", f"train.global_batch_size={GLOBAL_BATCH}"]


def step_in_torch(schedule):
    options = ["--schedule", schedule, "--steps", STEPS, "--batch", GLOBAL_BATCH, "--microbatch", MICRO_BATCH]
    return parallel.run_torch("llama_27m_pipeline_torch.py", *options)["step_time_ms"][WARM_UP:]


def step_in_pharos(schedule):
    with tempfile.TemporaryDirectory() as folder:
        records = parallel.train(pathlib.Path(folder, "run"), *pipelined(schedule), steps=STEPS, batch=MICRO_BATCH)
    return parallel.step_times(records)


def step():
    rows, bounds, details = [], [], {}
    for schedule in STEP_SCHEDULES:
        in_torch, in_pharos = [], []
        for _ in range(ROUNDS):
            in_torch.append(step_in_torch(schedule))
            in_pharos.append(step_in_pharos(schedule))
        ratios = [common.median(ours) / common.median(theirs) for ours, theirs in zip(in_pharos, in_torch)]
        for name, times in (("torch.distributed.pipelining", sum(in_torch, [])), ("pharos", sum(in_pharos, []))):
            rows.append((f"{name}, {schedule}, 2 ranks x 1 thread", f"{common.median(times):.0f} ms/step, {min(times):.0f} to {max(times):.0f}"))
        rows.append((f"pharos / PyTorch of each round, {schedule}", ", ".join(f"{ratio:.3f}" for ratio in ratios)))
        bounds.append(common.Bound(f"step time, pharos / PyTorch, {schedule}", common.median(sum(in_pharos, [])) / common.median(sum(in_torch, [])), 1.0))
        details[schedule] = {"torch_step_time_ms": in_torch, "pharos_step_time_ms": in_pharos}
    return rows, bounds, details


def measured_peaks(run_folder):
    """[pipeline rank] -> bytes, the most of all steps but the first."""
    paths = sorted((run_folder / "trace").glob("pipeline_rank_*.jsonl"))
    steps = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    return [max(one["peak_activation_bytes"] for one in of_rank[1:]) for of_rank in steps]


def memory():
    rows, bounds, details = [], [], {}
    for schedule in MEMORY_SCHEDULES:
        overrides = [*pipelined(schedule), *(f"model.{name}={value}" for name, value in MEMORY_SIZES.items())]
        if schedule == "interleaved":
            overrides.append("model.virtual_pipeline_model_parallel_size=2")
        with tempfile.TemporaryDirectory() as folder:
            run_folder = pathlib.Path(folder, "run")
            parallel.train(run_folder, *overrides, steps=3, batch=MICRO_BATCH)
            measured = measured_peaks(run_folder)
        plan = common.run(common.PHAROS, "plan", "llama_27m", f"train.micro_batch_size={MICRO_BATCH}", *overrides, "--world-size", RANKS, "--json").output
        planned = [rank["peak_activation_bytes"] for rank in json.loads(plan)["pipeline"]["ranks"]]
        details[schedule] = {"measured": measured, "planned": planned}
        for rank in range(RANKS):
            what = f"peak activations, {schedule}, rank {rank}"
            rows.append((what, f"{measured[rank] / 2**20:.1f} MiB, plan {planned[rank] / 2**20:.1f} MiB"))
            bounds.append(common.Bound(f"{what}, measured / plan", measured[rank] / planned[rank], 1.1))
            bounds.append(common.Bound(f"{what}, measured / plan ", measured[rank] / planned[rank], 0.9, at_most=False))
    return rows, bounds, details


PARTS = {"executor": executor, "bubble": bubble, "step": step, "memory": memory}


def measure(names):
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"bench/pipeline.py: there is no part {unknown[0]}.\n  Parts: {', '.join(PARTS)}.")
    rows, bounds, details = [], [], {}
    for name in names or PARTS:
        more_rows, more_bounds, details[name] = PARTS[name]()
        rows += more_rows
        bounds += more_bounds
    return common.report("pipeline", rows, bounds, details, keeps=not names)


if __name__ == "__main__":
    sys.exit(0 if measure(sys.argv[1:]) else 1)
