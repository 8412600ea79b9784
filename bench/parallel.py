"""Several ranks on this machine: data parallel against PyTorch DDP, start-up, memory of every sharding strategy against
`plan`, accumulation, and how much of the gradient reduction runs beside the backward pass.

Two ranks with one thread each, interleaved runs (PyTorch, pharos, PyTorch, …); the first two steps of each are left out.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import common

ROUNDS, STEPS, WARM_UP, RANKS = 3, 8, 2, 2
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**variables):
    return os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}


def step_in_torch():
    port = free_port()
    command = [sys.executable, "-W", "ignore", str(common.ROOT / "bench/llama_27m_torch.py"), "--steps", str(STEPS), "--threads", "1"]
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
        sys.exit("PyTorch DDP failed")
    results = [common.last_json(output) for output in outputs]
    return results[0]["step_time_ms"][WARM_UP:]


def train(run_folder, *overrides, recipe="llama_27m", ranks=RANKS, steps=STEPS):
    """The records of metrics.jsonl."""
    command = [common.PHAROS, "train", recipe, f"train.train_iters={steps}", "dist.num_threads=1", *overrides]
    command += ["--nproc", ranks, "--run-dir", run_folder]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, env=environment(), timeout=600)
    return common.read_metrics(run_folder)


def step_times(records, key="step_time_ms"):
    return [record[key] for record in records if key in record][WARM_UP:]


def pharos_times(folder, name, *overrides):
    return step_times(train(pathlib.Path(folder, name), "ddp.overlap_grad_reduce=true", "ddp.bucket_size=6000000", *overrides))


def peak_of_ranks(run_folder):
    """Most bytes that a rank was ever resident with, as each says itself when it ends."""
    peaks = []
    for path in sorted(pathlib.Path(run_folder, "trace").glob("rank_*.flight.json")):
        peaks.append(json.loads(path.read_text())["peak_resident_bytes"])
    return peaks


def memory_ratios(folder):
    """Measured / planned peak of rank 0, by strategy."""
    ratios = {}
    for strategy in STRATEGIES:
        overrides = [f"ddp.data_parallel_sharding_strategy={strategy}", "ddp.overlap_grad_reduce=true"]
        records = train(pathlib.Path(folder, strategy), *overrides, steps=3)
        measured = max(record.get("peak_memory_bytes", 0) for record in records)
        plan = common.run(common.PHAROS, "plan", "llama_27m", *overrides, "--world-size", RANKS, "--json").output
        ratios[strategy] = (measured, json.loads(plan)["memory"]["peak_bytes"])
    return ratios


def reduction_timeline(folder):
    """Spans of one step of rank 0: when the backward passes ran and when buckets were on their way."""
    run_folder = pathlib.Path(folder, "timeline")
    train(
        run_folder,
        "ddp.overlap_grad_reduce=true",
        "ddp.bucket_size=3000000",
        "telemetry.enabled=true",
        "telemetry.exporter=file",
        "telemetry.span_groups=all",
        steps=3,
    )
    spans = [json.loads(line) for line in (run_folder / "spans.jsonl").read_text().splitlines()]
    return spans


def measure():
    with tempfile.TemporaryDirectory() as folder:
        in_torch, in_pharos = [], []
        for round_number in range(ROUNDS):
            in_torch += step_in_torch()
            in_pharos += pharos_times(folder, f"round{round_number}")
        ratio = common.median(in_pharos) / common.median(in_torch)
        memory = memory_ratios(folder)
        records = train(pathlib.Path(folder, "start"), recipe="quickstart", ranks=4, steps=2)
    start_ms = next(sum(record["startup_ms"].values()) for record in records if "startup_ms" in record)
    rows = [
        ("PyTorch DDP, 2 ranks x 1 thread", f"{common.median(in_torch):.0f} ms/step"),
        ("pharos, 2 ranks x 1 thread", f"{common.median(in_pharos):.0f} ms/step"),
        ("4 ranks, start to end of first step", f"{start_ms:.0f} ms"),
    ]
    bounds = [
        common.Bound("step time, pharos / PyTorch DDP", ratio, 1.0),
        common.Bound("start-up of 4 ranks, s", start_ms / 1e3, 2.0),
    ]
    for strategy, (measured, planned) in memory.items():
        rows.append((f"peak memory of a rank, {strategy}", f"{measured / 2**20:.0f} MiB, plan {planned / 2**20:.0f} MiB"))
        bounds.append(common.Bound(f"memory / plan, {strategy}", measured / planned, 1.1))
        bounds.append(common.Bound(f"memory / plan, {strategy} ", measured / planned, 0.9, at_most=False))
    details = {"torch_step_time_ms": in_torch, "pharos_step_time_ms": in_pharos, "start_ms": start_ms, "memory": memory}
    return common.report("parallel", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
