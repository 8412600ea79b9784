"""One training step of the 27M model: pharos against eager PyTorch with fused AdamW; and pharos' peak memory against `plan`.

Interleaved runs (PyTorch, pharos, PyTorch, pharos, …); the first two steps of each run are left out.
"""

import json
import pathlib
import sys
import tempfile

import common

ROUNDS, STEPS, WARM_UP = 3, 10, 2


def step_in_torch():
    result = common.last_json(
        common.run(
            sys.executable, "-W", "ignore", common.ROOT / "bench/peers/llama_27m_torch.py", "--steps", STEPS, "--threads", common.THREADS
        ).output
    )
    return result["step_time_ms"][WARM_UP:], result["peak_resident_bytes"]


def step_in_pharos():
    with tempfile.TemporaryDirectory() as folder:
        run_folder = pathlib.Path(folder, "run")
        finished = common.run(common.PHAROS, "train", "llama_27m", f"train.train_iters={STEPS}", "--run-dir", run_folder)
        times = [record["step_time_ms"] for record in common.read_metrics(run_folder) if "step_time_ms" in record]
    return times[WARM_UP:], finished.peak_resident_bytes


def measure():
    in_torch, in_pharos, torch_peak, pharos_peak = [], [], [], []
    for _ in range(ROUNDS):
        for measure_side, times, peaks in ((step_in_torch, in_torch, torch_peak), (step_in_pharos, in_pharos, pharos_peak)):
            step_times, peak = measure_side()
            times += step_times
            peaks.append(peak)
    planned = json.loads(common.run(common.PHAROS, "plan", "llama_27m", "--json").output)
    planned_peak = planned["memory"]["peak_bytes"]
    ratio = common.median(in_pharos) / common.median(in_torch)
    memory_ratio = max(pharos_peak) / planned_peak
    tokens = 8 * 256
    rows = [
        ("PyTorch eager, fused AdamW", f"{common.median(in_torch):.0f} ms/step  {tokens / common.median(in_torch) * 1e3:.0f} tokens/s"),
        ("pharos", f"{common.median(in_pharos):.0f} ms/step  {tokens / common.median(in_pharos) * 1e3:.0f} tokens/s"),
        ("peak memory, PyTorch", f"{max(torch_peak) / 2**20:.0f} MiB"),
        ("peak memory, pharos", f"{max(pharos_peak) / 2**20:.0f} MiB"),
        ("peak memory, pharos plan", f"{planned_peak / 2**20:.0f} MiB"),
    ]
    bounds = [
        common.Bound("step time, pharos / PyTorch", ratio, 1.0),
        common.Bound("peak memory, measured / planned", memory_ratio, 1.1),
        common.Bound("peak memory, measured / planned ", memory_ratio, 0.9, at_most=False),
    ]
    details = {
        "torch_step_time_ms": in_torch,
        "pharos_step_time_ms": in_pharos,
        "torch_peak_bytes": torch_peak,
        "pharos_peak_bytes": pharos_peak,
        "planned_peak_bytes": planned_peak,
    }
    return common.report("training_step", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
