"""Runs the Google Benchmark programs (bench/programs/*_bench.cc) and keeps their results."""

import json

import common


def measure(program):
    # The library's own JSON goes to a file, so that messages of the program cannot mix with it.
    kept = common.RESULTS / f"{program.name}.raw"
    common.RESULTS.mkdir(exist_ok=True)
    common.run(program, f"--benchmark_out={kept}", "--benchmark_out_format=json", "--benchmark_repetitions=7", "--benchmark_enable_random_interleaving=true")
    result = json.loads(kept.read_text())
    kept.unlink()
    medians = [entry for entry in result["benchmarks"] if entry.get("aggregate_name") == "median"]
    rows = [(entry["run_name"], f"{entry['real_time']:.1f} {entry['time_unit']}") for entry in medians]
    return common.report(program.name, rows, [], {"benchmarks": medians})


def main():
    for program in sorted((common.ROOT / "build/release/bench").glob("*_bench")):
        measure(program)


if __name__ == "__main__":
    main()
