"""What telemetry costs a training step: the 27M model with everything off, and with every span group, metrics and logs sent over
OTLP to a receiver on the same cores. Taking turns; the first steps of each run are left out.
"""

import os
import pathlib
import sys
import tempfile

import common
import receiver

ROUNDS, STEPS, WARM_UP = 4, 8, 2
OFF = ("telemetry.ring=false", "telemetry.enabled=false")
ON = ("telemetry.enabled=true", "telemetry.span_groups=all", "telemetry.logs_enabled=true")


def step_times(overrides):
    with tempfile.TemporaryDirectory() as folder:
        run_folder = pathlib.Path(folder, "run")
        command = (common.PHAROS, "train", "llama_27m", f"train.train_iters={STEPS}", *overrides, "--run-dir", run_folder)
        common.run(*command)
        records = common.read_metrics(run_folder)
    return [record["step_time_ms"] for record in records if "step_time_ms" in record][WARM_UP:]


def measure():
    off, on, ratios = [], [], []
    with receiver.blackhole() as ports:
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports['grpc']}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        for _ in range(ROUNDS):
            off_now, on_now = step_times(OFF), step_times(ON)
            ratios.append(common.median(on_now) / common.median(off_now))
            off += off_now
            on += on_now
    rows = [
        ("off", f"{common.median(off):.1f} ms/step, fastest {min(off):.1f}"),
        ("all groups, metrics, logs", f"{common.median(on):.1f} ms/step, fastest {min(on):.1f}"),
        ("ratio of each round", "  ".join(f"{ratio:.4f}" for ratio in ratios)),
    ]
    bounds = [common.Bound("step time, on / off (fastest steps)", min(on) / min(off), 1.005)]
    return common.report("lens_step", rows, bounds, {"off_ms": off, "on_ms": on, "ratios": ratios})


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
