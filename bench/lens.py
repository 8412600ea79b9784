"""What a span site costs: ours (build/release/bench/lens_bench) beside nemo-lens with its batch processor, taking turns.

Both exporters throw everything away. Each number is the best of several rounds. nemo-lens is installed into .venv-bench-lens; where
that is not possible, its half is left out with a line that says so.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import common

ROUNDS = 3
PROGRAM = common.ROOT / "build/release/bench/lens_bench"
ENVIRONMENT = common.ROOT / ".venv-bench-lens"
REQUIREMENTS = common.ROOT / "requirements-bench-lens.txt"

# label, case of lens_bench, case of lens_nemo.py
CASES = [
    ("gate query", "gate_query", "gate_query"),
    ("site of a disabled group", "site_of_disabled_group", "disabled_site"),
    ("span, no attributes", "span_without_attributes", "span_0_attributes"),
    ("span, 2 attributes", "span_with_two_attributes", None),
    ("span, 2 attributes, exporter beside", "span_with_two_attributes_exported", "span_2_attributes"),
    ("span, 4 attributes", "span_with_four_attributes", "span_4_attributes"),
    ("span_cm, 2 attributes", "span_cm_with_two_attributes", "span_cm_2_attributes"),
    ("three nested spans", "three_nested_spans", "three_nested_spans"),
]


def works(python, statement):
    return subprocess.run([python, "-c", statement], capture_output=True, check=False).returncode == 0


def find_python():
    """An interpreter for nemo-lens: 3.13 or newer where there is one, else the one that runs this."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    names = [shutil.which(name) for name in ("python3.14", "python3.13", "python3")]
    names += sorted(pyenv.glob("versions/3.1[3-9]*/bin/python"))
    suitable = [name for name in names if name and works(name, "import sys; sys.exit(sys.version_info < (3, 13))")]
    return suitable[0] if suitable else sys.executable


def nemo_python():
    """The interpreter of an environment with nemo-lens; None, after saying why, where there cannot be one."""
    python = ENVIRONMENT / "bin/python"
    stamp = ENVIRONMENT / "pharos.stamp"
    if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text() and works(python, "import nemo.lens"):
        return python
    steps = [
        [find_python(), "-m", "venv", "--clear", ENVIRONMENT],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-requires-python", "-r", REQUIREMENTS],
        [python, "-c", "import nemo.lens"],
    ]
    for step in steps:
        done = subprocess.run([str(word) for word in step], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
            print(f"nemo-lens is left out: {' '.join(map(str, step[:4]))} … failed: {last}", file=sys.stderr, flush=True)
            return None
    stamp.write_text(REQUIREMENTS.read_text())
    return python


def measure_pharos():
    """ns of each case and spans/s of the threads."""
    kept = common.RESULTS / "lens.raw"
    common.RESULTS.mkdir(exist_ok=True)
    common.run(PROGRAM, f"--benchmark_out={kept}", "--benchmark_out_format=json", "--benchmark_min_time=0.2")
    entries = json.loads(kept.read_text())["benchmarks"]
    kept.unlink()
    ns = {entry["name"]: entry["real_time"] for entry in entries}
    rates = [entry["items_per_second"] for entry in entries if entry["name"].startswith("spans_of_eight_threads")]
    return {"ns": ns, "spans_per_second": {"eight_threads": rates[0]}}


def best(rounds):
    return {
        "ns": {name: min(entry["ns"][name] for entry in rounds) for name in rounds[0]["ns"]},
        "spans_per_second": {
            name: max(entry["spans_per_second"][name] for entry in rounds) for name in rounds[0]["spans_per_second"]
        },
    }


def duration(ns):
    return f"{ns:.1f} ns" if ns < 1000 else f"{ns / 1000:.1f} µs"


def line(ours, theirs="", ratio=""):
    return f"{ours:>16}  {theirs:>16}  {ratio:>9}".rstrip()


def table(ours, theirs):
    rows = [("", line("pharos", "nemo-lens" if theirs else "", "ratio" if theirs else ""))]
    for label, own_case, other_case in CASES:
        own = ours["ns"][own_case]
        other = theirs["ns"][other_case] if theirs and other_case else None
        rows.append((label, line(duration(own), duration(other), f"{other / own:,.0f} x") if other else line(duration(own))))
    own = ours["spans_per_second"]["eight_threads"]
    if theirs:
        other = theirs["spans_per_second"]["eight_threads"]
        rows.append(("eight threads together", line(f"{own:,.0f} /s", f"{other:,.0f} /s", f"{own / other:,.0f} x")))
    else:
        rows.append(("eight threads together", line(f"{own:,.0f} /s")))
    return rows


def measure():
    python = nemo_python()
    ours, theirs, versions = [], [], {}
    for _ in range(ROUNDS):
        ours.append(measure_pharos())
        if python:
            theirs.append(common.last_json(common.run(python, common.ROOT / "bench/peers/lens_nemo.py").output))
            versions = theirs[-1]["versions"]
    own = best(ours)
    other = best(theirs) if theirs else None
    bounds = []
    if other:
        recorded = other["ns"]["span_2_attributes"] / own["ns"]["span_with_two_attributes_exported"]
        disabled = other["ns"]["disabled_site"] / own["ns"]["site_of_disabled_group"]
        bounds = [
            common.Bound("nemo-lens / pharos, span with 2 attributes", recorded, 100, at_most=False),
            common.Bound("nemo-lens / pharos, disabled site", disabled, 100, at_most=False),
        ]
    details = {"versions": versions, "pharos": own, "nemo_lens": other or "not installed"}
    return common.report("lens", table(own, other), bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
