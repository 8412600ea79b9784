"""What the benchmarks share: running a program with its wall time and peak memory, describing the machine, keeping results."""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHAROS = ROOT / "build" / "release" / "pharos"
RESULTS = ROOT / "bench" / "results"
THREADS = 2
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/receivers")]  # what benchmarks share with the tests


@dataclasses.dataclass
class Finished:
    """A program that ended with exit code 0."""

    output: str
    wall_s: float
    peak_resident_bytes: int


@dataclasses.dataclass
class Bound:
    """One promise: `value` must be at most (or at least) `limit`."""

    what: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def is_met(self):
        return self.value <= self.limit if self.at_most else self.value >= self.limit


def environment():
    """The environment of every measured program: the same number of threads for both sides."""
    return os.environ | {"OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false"}


def run(*command):
    """Runs the command to its end; SystemExit with its output if it fails. The output is standard output alone."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment())
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)  # the usage of this child alone
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(words)}\nended with {process.returncode}:\n{output[-4000:]}\n{errors.read()[-4000:]}")
    return Finished(output, wall_s, usage.ru_maxrss * 1024)


def last_json(text):
    """The last line of the text that is a JSON object."""
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def read_metrics(run_folder):
    """The records of metrics.jsonl, one a step."""
    return [json.loads(line) for line in (pathlib.Path(run_folder) / "metrics.jsonl").read_text().splitlines()]


def median(values):
    return statistics.median(values)


def gpu():
    """Name of the first CUDA device, None where there is none."""
    try:
        found = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.splitlines()[0].strip()


def machine():
    model = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory_kib = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "threads": THREADS,
        "gpu": gpu(),
    }


def commit():
    found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def report(name, rows, bounds, details, keeps=True):
    """Prints the table, writes results/NAME.json and NAME.txt if it keeps them, and returns whether all bounds are met.

    rows: (label, text) pairs for people; details: every measured number, for programs.
    """
    where = machine()
    date = datetime.date.today().isoformat()
    width = max(len(label) for label, _ in rows + [(bound.what, "") for bound in bounds])
    lines = [f"{name}   {date}   {where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB{', ' + where['gpu'] if where['gpu'] else ''}", ""]
    lines += [f"  {label:<{width}}  {text}" for label, text in rows]
    for bound in bounds:
        relation = "at most" if bound.at_most else "at least"
        verdict = "met" if bound.is_met else "MISSED"
        lines.append(f"  {bound.what:<{width}}  {bound.value:.3f}  ({relation} {bound.limit:g}: {verdict})")
    table = "\n".join(lines) + "\n"
    print("\n" + table, flush=True)
    is_met = all(bound.is_met for bound in bounds)
    if not keeps:
        return is_met
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text(table)
    record = {
        "name": name,
        "date": date,
        "commit": commit(),
        "machine": where,
        "bounds": [dataclasses.asdict(bound) | {"is_met": bound.is_met} for bound in bounds],
        "details": details,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return is_met
