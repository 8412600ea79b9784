"""What a span site of nemo-lens costs. Runs in an environment that has nemo-lens and prints one JSON object:
{"versions": {...}, "ns": {CASE: nanoseconds}, "spans_per_second": {CASE: rate}}; each number is the best of several rounds.
"""

import importlib.metadata
import json
import platform
import threading
import time

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from nemo.lens import NemoLensConfig, is_span_group_enabled, managed_span, set_enabled_span_groups, setup_telemetry, span_cm

ROUNDS = 5
ROUND_S = 0.1
THREADS = 8


class DiscardingExporter(SpanExporter):
    def export(self, spans):
        return SpanExportResult.SUCCESS


def best_ns(body):
    """Nanoseconds of one call of body(count) per count, best of the rounds; the batch processor's thread runs beside."""
    count = 1
    while True:
        started = time.perf_counter()
        body(count)
        elapsed = time.perf_counter() - started
        if elapsed > ROUND_S:
            break
        count *= 2
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        body(count)
        rounds.append((time.perf_counter_ns() - started) / count)
    return min(rounds)


def nothing(count):
    for _ in range(count):
        pass


def gate_query(count):
    for _ in range(count):
        is_span_group_enabled("step")


def managed_span_0(count):
    for _ in range(count):
        with managed_span("step", "bench.step"):
            pass


def managed_span_2(count):
    for i in range(count):
        with managed_span("step", "bench.step", iteration=i, is_goodput_span=True):
            pass


def managed_span_4(count):
    for i in range(count):
        with managed_span("step", "bench.step", iteration=i, is_goodput_span=True, loss=2.5, schedule="1f1b"):
            pass


def span_cm_2(count):
    for i in range(count):
        with span_cm("bench.cold", iteration=i, is_goodput_span=True):
            pass


def three_nested(count):
    for i in range(count):
        with managed_span("step", "bench.outer", iteration=i):
            with managed_span("step", "bench.middle", iteration=i):
                with managed_span("step", "bench.inner", iteration=i):
                    pass


def threads_spans_per_second(count):
    threads = [threading.Thread(target=managed_span_2, args=(count,)) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * count / (time.perf_counter() - started)


def main():
    handle = setup_telemetry(
        NemoLensConfig(enabled=True), span_exporter=DiscardingExporter(), metric_reader=InMemoryMetricReader()
    )
    loop_ns = best_ns(nothing)
    set_enabled_span_groups(frozenset({"job"}))
    if is_span_group_enabled("step"):
        raise SystemExit("the group is on although it was switched off")
    off = {"gate_query": best_ns(gate_query), "disabled_site": best_ns(managed_span_2)}
    set_enabled_span_groups(frozenset({"job", "step"}))
    with managed_span("step", "bench.check") as span:
        if span is None or not span.is_recording():
            raise SystemExit("nemo-lens records nothing")
    on = {
        "span_0_attributes": best_ns(managed_span_0),
        "span_2_attributes": best_ns(managed_span_2),
        "span_4_attributes": best_ns(managed_span_4),
        "span_cm_2_attributes": best_ns(span_cm_2),
        "three_nested_spans": best_ns(three_nested),
    }
    rate = max(threads_spans_per_second(500) for _ in range(ROUNDS))
    versions = {name: importlib.metadata.version(name) for name in ("nemo-lens", "opentelemetry-sdk")}
    result = {
        "versions": versions | {"python": platform.python_version()},
        "ns": {name: value - loop_ns for name, value in (off | on).items()},
        "spans_per_second": {"eight_threads": rate},
    }
    print(json.dumps(result))
    handle.shutdown()


if __name__ == "__main__":
    main()
