"""What the tests of telemetry in a process share: settings of the environment, the program lens_load and what it reports."""

import json
import os
import pathlib
import subprocess
import tempfile

LOAD = os.environ.get("LENS_LOAD", "build/release/tests/lens_load")
SIGNALS = ("traces", "metrics", "logs")
PROTOCOLS = ("grpc", "http/protobuf")
AMOUNT = {"spans": 600, "logs": 40, "adds": 30, "seconds": 1.5}
PATIENCE = 60  # seconds, for what is promised within a few: machines that run tests are busy
QUICK = {  # so that a run of two seconds has many requests
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_BLRP_SCHEDULE_DELAY": "100",
    "OTEL_METRIC_EXPORT_INTERVAL": "300",
}


def clean_environment(**settings):
    prefixes = ("OTEL_", "NEMO_LENS_", "MEGATRON_OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes) and not name.lower().endswith("_proxy")}
    return kept | {name: str(value) for name, value in settings.items()}


def enabled(otlp=None, **settings):
    """The environment of a process with telemetry on; `otlp` are OTEL_EXPORTER_OTLP_* variables."""
    on = {"NEMO_LENS_ENABLED": "1", "NEMO_LENS_LOGS_ENABLED": "1", "NEMO_LENS_SPAN_GROUPS": "all"}
    return clean_environment(**(on | QUICK | {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in (otlp or {}).items()} | settings))


def arguments_of(**amounts):
    return [text for name, value in amounts.items() for text in ("--" + name.replace("_", "-"), str(value))]


class Outcome:
    def __init__(self, code, report, errors, amounts):
        self.code, self.report, self.errors, self.amounts = code, report, errors, amounts

    def lost(self, name):
        return sum(self.report[name][kind] for kind in ("dropped", "failed", "rejected"))


def load(environment, within=(), **amounts):
    """Runs the program to its end, by the command `within` if there is one."""
    with tempfile.TemporaryDirectory(prefix="pharos_load_") as folder:
        report = pathlib.Path(folder, "report.json")
        finished = subprocess.run(
            [*within, LOAD, *arguments_of(report=report, **amounts)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE, env=environment,
        )
        return Outcome(finished.returncode, json.loads(report.read_text()) if report.exists() else None, finished.stderr, amounts)


def read_ring(folder):
    path = pathlib.Path(folder, "trace/rank_0.ring")
    return json.loads(subprocess.run([LOAD, "--read", path], capture_output=True, text=True, check=True).stdout)


def endpoint(sink, protocol="http/protobuf", scheme="http"):
    return f"{scheme}://127.0.0.1:{sink.grpc_port if protocol == 'grpc' else sink.http_port}"
