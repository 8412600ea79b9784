"""Whether the exporter keeps 100,000 spans a second over OTLP, gRPC and HTTP, plain and gzip, and what it costs.

Four threads record spans with two attributes; rotel receives and throws away, on the same cores.
"""

import os
import sys

import common
import receiver

PROGRAM = common.ROOT / "build/release/bench/lens_throughput"
RATE, SECONDS, THREADS = 100_000, 10, 4


def measure():
    rows, bounds, details = [], [], {}
    with receiver.blackhole() as ports:
        for protocol, port in ports.items():
            for compression in ("none", "gzip"):
                os.environ |= {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
                    "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                    "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
                }
                arguments = ("--threads", THREADS, "--rate", RATE, "--seconds", SECONDS, "--exporter", "otlp")
                counts = common.last_json(common.run(PROGRAM, *arguments).output)
                lost = counts["recorded"] - counts["exported"]
                name = f"{protocol}, {compression}"
                rows.append((name, f"{counts['spans_per_second']:.0f} spans/s, {counts['cores']:.2f} cores, {lost} lost"))
                bounds.append(common.Bound(f"{name}: spans lost", lost, 0))
                details[name] = counts
    return common.report("lens_otlp", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
