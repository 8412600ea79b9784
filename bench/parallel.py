"""Several ranks on this machine: data parallel against PyTorch DDP, start-up, memory of every sharding strategy against
`plan`, accumulation of gradients, and what of the gradient reduction runs beside the backward pass (a timeline).

Two ranks with one thread each, interleaved runs (PyTorch, pharos, …); the first two steps of each are left out.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import common
from free_ports import free_port

ROUNDS, STEPS, WARM_UP, RANKS = 3, 5, 2, 2
DATA = common.ROOT / "data" / "quickstart"
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
BUCKETS = ("ddp.overlap_grad_reduce=true", "ddp.bucket_size=6000000")
FINISH, BACKWARD, STEP = "megatron.grad_sync.finish", "megatron.microbatch.backward", "megatron.train.iteration"


def environment(**variables):
    return os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}


def run_torch(script, *options):
    """What rank 0 of a PyTorch script in bench/peers prints as JSON."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", str(common.ROOT / "bench/peers" / script), "--threads", "1", *(str(option) for option in options)]
    ranks = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(RANK=rank, WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"PyTorch failed: {script}")
    return common.last_json(outputs[0])


def step_in_torch():
    return run_torch("llama_27m_torch.py", "--steps", STEPS)["step_time_ms"][WARM_UP:]


def train(run_folder, *overrides, recipe="llama_27m", ranks=RANKS, steps=STEPS, batch=4):
    """The records of metrics.jsonl."""
    command = [common.PHAROS, "train", recipe, f"train.train_iters={steps}", f"train.micro_batch_size={batch}"]
    command += ["checkpoint.save_interval=0", "dist.num_threads=1", *overrides, "--nproc", ranks, "--run-dir", run_folder]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, env=environment(), timeout=600)
    return common.read_metrics(run_folder)


def step_times(records):
    return [record["step_time_ms"] for record in records if "step_time_ms" in record][WARM_UP:]


def memory_of_strategies(folder):
    """(measured, planned) peak of a rank in bytes, by strategy."""
    found = {}
    for strategy in STRATEGIES:
        overrides = [f"ddp.data_parallel_sharding_strategy={strategy}", "ddp.overlap_grad_reduce=true", "checkpoint.save_interval=0"]
        records = train(pathlib.Path(folder, strategy), *overrides, steps=3)
        measured = max(record.get("peak_memory_bytes", 0) for record in records)
        plan = common.run(common.PHAROS, "plan", "llama_27m", "train.micro_batch_size=4", *overrides, "--world-size", RANKS, "--json").output
        found[strategy] = (measured, json.loads(plan)["memory"]["peak_bytes"])
    return found


def milliseconds(text):
    return datetime.datetime.fromisoformat(text).timestamp() * 1e3


def spans_of_last_step(folder, *overrides):
    """[(name, purpose, start, end)] in milliseconds from the start of the last step, of the rank that exports."""
    run_folder = pathlib.Path(folder, "spans" + str(len(list(pathlib.Path(folder).glob("spans*")))))
    telemetry = ("telemetry.enabled=true", "telemetry.exporter=file", "telemetry.span_groups=all")
    train(run_folder, *overrides, *telemetry, steps=4)
    spans = []
    for path in [run_folder / "spans.jsonl", *(run_folder / "trace").glob("spans*.jsonl")]:
        if path.exists():
            spans += [json.loads(line) for line in path.read_text().splitlines()]
    begin, end = [(milliseconds(span["start_time"]), milliseconds(span["end_time"])) for span in spans if span["name"] == STEP][-1]
    return [
        (span["name"], span["attributes"].get("megatron.comm.purpose", ""), milliseconds(span["start_time"]) - begin, milliseconds(span["end_time"]) - begin)
        for span in spans
        if begin <= milliseconds(span["start_time"]) <= end
    ]


def waited(spans):
    return sum(end - start for name, _, start, end in spans if name == FINISH)


def timeline(spans):
    """Lines with a bar for the backward pass, each bucket from its start to the end of the wait for it, and that wait."""
    chosen = [span for span in spans if span[0] in (BACKWARD, FINISH) or "bucket" in span[1]]
    last = max(end for _, _, _, end in chosen)
    lines = []
    for name, purpose, start, end in sorted(chosen, key=lambda span: span[2]):
        left, right = int(start / last * 60), max(int(end / last * 60), int(start / last * 60) + 1)
        lines.append((f"  {purpose or name}", f"{' ' * left}{'#' * (right - left)}{' ' * (60 - right)} {start:.0f}-{end:.0f} ms"))
    return lines


def started_in_backward(spans):
    ends = max(end for name, _, _, end in spans if name == BACKWARD)
    starts = [start for _, purpose, start, _ in spans if "bucket" in purpose]
    return sum(start < ends for start in starts), len(starts)


def measure():
    if not DATA.with_suffix(".idx").exists():
        sys.exit(f"{DATA}.idx is missing: run tools/prepare_quickstart_data.")
    in_torch, in_pharos, overlapping = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            in_torch += step_in_torch()
            in_pharos += step_times(train(pathlib.Path(folder, f"plain{number}")))
            overlapping += step_times(train(pathlib.Path(folder, f"overlap{number}"), *BUCKETS))
        memory = memory_of_strategies(folder)
        one = train(pathlib.Path(folder, "one"), "train.global_batch_size=4", batch=2)
        four = train(pathlib.Path(folder, "four"), "train.global_batch_size=16", batch=2)
        train(pathlib.Path(folder, "cache"), f"data={DATA}", recipe="quickstart", ranks=1, steps=2, batch=2)  # indices
        started = train(pathlib.Path(folder, "start"), f"data={DATA}", recipe="quickstart", ranks=4, steps=2, batch=2)
        with_overlap, without = spans_of_last_step(folder, *BUCKETS), spans_of_last_step(folder)
    start_ms = next(sum(record["startup_ms"].values()) for record in started if "startup_ms" in record)
    passes = [common.median([record["forward_backward_ms"] for record in records if "step_time_ms" in record][WARM_UP:]) for records in (one, four)]
    early, buckets = started_in_backward(with_overlap)
    rows = [
        ("PyTorch DDP, 2 ranks x 1 thread", f"{common.median(in_torch):.0f} ms/step, fastest {min(in_torch):.0f}"),
        ("pharos, reduction after the pass", f"{common.median(in_pharos):.0f} ms/step, fastest {min(in_pharos):.0f}"),
        ("pharos, reduction beside the pass", f"{common.median(overlapping):.0f} ms/step, fastest {min(overlapping):.0f}"),
        ("buckets started in the backward pass", f"{early} of {buckets}"),
        ("wait for gradients, beside / after", f"{waited(with_overlap):.0f} / {waited(without):.0f} ms"),
        ("forward and backward, 1 / 4 microbatches", f"{passes[0]:.0f} / {passes[1]:.0f} ms"),
        ("4 ranks, start to end of first step", f"{start_ms:.0f} ms"),
    ]
    rows += [(f"peak of a rank, {name}", f"{measured / 2**20:.0f} MiB, plan {planned / 2**20:.0f} MiB") for name, (measured, planned) in memory.items()]
    rows += [("one step with overlap, rank 1:", "")] + timeline(with_overlap)
    bounds = [
        common.Bound("step time, pharos / PyTorch DDP", min(common.median(in_pharos), common.median(overlapping)) / common.median(in_torch), 1.0),
        common.Bound("4 microbatches / 4 times 1", passes[1] / (4 * passes[0]), 1.02),
        common.Bound("start-up of 4 ranks, s", start_ms / 1e3, 2.0),
    ]
    for name, (measured, planned) in memory.items():
        bounds.append(common.Bound(f"memory / plan, {name}", measured / planned, 1.1))
        bounds.append(common.Bound(f"memory / plan, {name} ", measured / planned, 0.9, at_most=False))
    details = {"torch_step_time_ms": in_torch, "pharos_step_time_ms": in_pharos, "overlapping_step_time_ms": overlapping, "start_ms": start_ms, "memory": memory}
    return common.report("parallel", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
