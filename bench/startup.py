"""Process start to end of the first step of `quickstart` on prepared data; beside it what Python needs to import torch.

Two clocks: ours, from starting the process until the record of the first step's end is in metrics.jsonl, and pharos' own waterfall.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

import common

ROUNDS = 7
DATA = common.ROOT / "data" / "quickstart"


def first_step_of_pharos():
    """Seconds from fork until the first record of metrics.jsonl can be read; and the sum of its start-up phases."""
    with tempfile.TemporaryDirectory() as folder:
        run_folder = pathlib.Path(folder, "run")
        metrics = run_folder / "metrics.jsonl"
        command = [common.PHAROS, "train", "quickstart", f"data={DATA}", "train.train_iters=1", "--run-dir", run_folder]
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=common.environment()
        )
        while not (metrics.exists() and "\n" in metrics.read_text()):
            if process.poll() not in (None, 0):
                sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}")
            time.sleep(0.001)
        elapsed = time.perf_counter() - started
        process.wait()
        phases = next(record["startup_ms"] for record in common.read_metrics(run_folder) if "startup_ms" in record)
        return elapsed, sum(phases.values()) / 1e3


def measure():
    if not DATA.with_suffix(".idx").exists():
        sys.exit(f"{DATA}.idx is missing: run tools/prepare_quickstart_data.")
    ours, own, imports = [], [], []
    first_step_of_pharos()  # once for the disk cache and the dataset's index cache
    for _ in range(ROUNDS):
        elapsed, phases = first_step_of_pharos()
        ours.append(elapsed)
        own.append(phases)
        imports.append(common.run(sys.executable, "-W", "ignore", "-c", "import torch").wall_s)
    rows = [
        ("pharos, start to end of first step, outer clock", f"{common.median(ours):.3f} s"),
        ("pharos, the same by its own waterfall", f"{common.median(own):.3f} s"),
        ("python -c 'import torch'", f"{common.median(imports):.3f} s"),
        ("ratio pharos / import torch", f"{common.median(ours) / common.median(imports):.2f}"),
    ]
    bounds = [common.Bound("seconds to the end of the first step", common.median(ours), 1.0)]
    details = {"pharos_s": ours, "pharos_own_s": own, "import_torch_s": imports}
    return common.report("startup", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
