"""Context parallelism on a sequence of 8192 tokens: peak memory of a rank against `plan`, and time of a step against one rank.

llama_27m with two layers, one sequence a step, ranks of one thread, interleaved runs; the first step of each is left out. Times of
more ranks than the machine has cores say nothing about the method; memory does not depend on it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import common

ROUNDS, STEPS, WARM_UP, TOKENS = 2, 3, 1, 8192
LAYOUTS = {"one rank": (1, "p2p"), "ring, 2 ranks": (2, "p2p"), "all-gather, 2 ranks": (2, "all_gather"), "ring, 4 ranks": (4, "p2p"), "all-gather, 4 ranks": (4, "all_gather")}


def overrides(ranks, exchange):
    return [
        f"dataset.seq_length={TOKENS}",
        "model.num_layers=2",
        "train.micro_batch_size=1",
        "train.global_batch_size=1",
        f"model.context_parallel_size={ranks}",
        f"model.cp_comm_type=[{exchange}]",
        f"train.train_iters={STEPS}",
        "dist.num_threads=1",
        "checkpoint.save_interval=0",
    ]


def train(run_folder, ranks, exchange):
    command = [common.PHAROS, "train", "llama_27m", *overrides(ranks, exchange), "--nproc", ranks, "--run-dir", run_folder]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, env=environment, timeout=900)
    return common.read_metrics(run_folder)


def planned_memory(ranks, exchange):
    plan = common.run(common.PHAROS, "plan", "llama_27m", *overrides(ranks, exchange), "--world-size", ranks, "--json").output
    return json.loads(plan)["memory"]


def measure():
    times, peaks, losses = {name: [] for name in LAYOUTS}, {name: 0 for name in LAYOUTS}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for name, (ranks, exchange) in LAYOUTS.items():
                records = train(pathlib.Path(folder, f"{ranks}{exchange}{number}"), ranks, exchange)
                times[name] += [record["step_time_ms"] for record in records if "step_time_ms" in record][WARM_UP:]
                peaks[name] = max(peaks[name], max(record.get("peak_memory_bytes", 0) for record in records))
                losses[name] = [record["loss"] for record in records if "loss" in record]
    planned = {name: planned_memory(*layout)["peak_bytes"] for name, layout in LAYOUTS.items()}
    alone = common.median(times["one rank"])
    rows = [
        (name, f"{common.median(times[name]):.0f} ms/step ({common.median(times[name]) / alone:.2f}), peak {peaks[name] / 2**20:.0f} MiB, plan {planned[name] / 2**20:.0f} MiB")
        for name in LAYOUTS
    ]
    bounds = []
    for name, (ranks, _) in LAYOUTS.items():
        bounds.append(common.Bound(f"memory / plan, {name}", peaks[name] / planned[name], 1.1))
        bounds.append(common.Bound(f"memory / plan, {name} ", peaks[name] / planned[name], 0.9, at_most=False))
        difference = max(abs(a - b) / abs(b) for a, b in zip(losses[name], losses["one rank"], strict=True))
        bounds.append(common.Bound(f"loss against one rank, {name}", difference, 2e-6))
        if 1 < ranks <= (os.cpu_count() or 1):
            bounds.append(common.Bound(f"time / one rank, {name}", common.median(times[name]) / alone, 1.2 / ranks))
    return common.report("context_parallel", rows, bounds, {"step_time_ms": times, "peak_bytes": peaks, "plan_bytes": planned})


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
