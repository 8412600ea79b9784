"""OTLP requests by the official protos: decoding to OTLP/JSON and a conformance check that no usual receiver makes."""

import base64
import json
from importlib import import_module

from google.protobuf import json_format
from google.protobuf.unknown_fields import UnknownFieldSet

SIGNALS = {}
for _signal, _pkg, _svc, _item in (("traces", "trace", "TraceService", "spans"),
                                   ("metrics", "metrics", "MetricsService", "data_points"),
                                   ("logs", "logs", "LogsService", "log_records")):
    _m = import_module(f"opentelemetry.proto.collector.{_pkg}.v1.{_pkg}_service_pb2")
    _n = "Export" + _svc[:-len("Service")]
    SIGNALS[_signal] = dict(service=f"opentelemetry.proto.collector.{_pkg}.v1.{_svc}", request=getattr(_m, _n + "ServiceRequest"),
                            response=getattr(_m, _n + "ServiceResponse"), rejected="rejected_" + _item)
HEX_KEYS = {"traceId", "spanId", "parentSpanId"}


def swap_ids(node, conv):
    """OTLP/JSON has ids in hex where protobuf's own JSON mapping has base64."""
    if isinstance(node, dict):
        return {k: conv(v) if k in HEX_KEYS and isinstance(v, str) else swap_ids(v, conv) for k, v in node.items()}
    return [swap_ids(v, conv) for v in node] if isinstance(node, list) else node


def to_json(msg):
    return swap_ids(json_format.MessageToDict(msg, use_integers_for_enums=True), lambda v: base64.b64decode(v).hex())


def from_json(body, cls):
    tree = swap_ids(json.loads(body), lambda v: base64.b64encode(bytes.fromhex(v)).decode())
    return json_format.ParseDict(tree, cls(), ignore_unknown_fields=True)


def unknown_fields(msg, path, out):
    for f in UnknownFieldSet(msg):
        out.append(f"{path}: field {f.field_number} (wire type {f.wire_type}) is not in the official schema")
    for desc, val in msg.ListFields():
        if desc.type == desc.TYPE_MESSAGE:
            many = not hasattr(val, "ListFields")
            for i, v in enumerate(val if many else [val]):
                unknown_fields(v, f"{path}.{desc.name}" + (f"[{i}]" if many else ""), out)


def check_attrs(attrs, where, out):
    seen = set()
    for kv in attrs:
        if not kv.key:
            out.append(f"{where}: attribute with an empty key")
        if kv.key in seen:
            out.append(f"{where}: attribute {kv.key!r} repeated")
        seen.add(kv.key)
        if kv.value.WhichOneof("value") == "kvlist_value":
            check_attrs(kv.value.kvlist_value.values, f"{where}.{kv.key}", out)


def check_id(value, size, where, out, optional=False):
    if optional and not value:
        return
    if len(value) != size:
        out.append(f"{where}: {len(value)} bytes, not {size}")
    elif not any(value):
        out.append(f"{where}: all zero")


def check_span(s, w, out):
    w = f"{w} span {s.name!r}"
    check_id(s.trace_id, 16, w + " trace_id", out)
    check_id(s.span_id, 8, w + " span_id", out)
    check_id(s.parent_span_id, 8, w + " parent_span_id", out, optional=True)
    if s.parent_span_id and s.parent_span_id == s.span_id:
        out.append(f"{w}: its own parent")
    if not s.name:
        out.append(f"{w}: empty name")
    if not s.start_time_unix_nano or not s.end_time_unix_nano:
        out.append(f"{w}: start or end time missing")
    elif s.end_time_unix_nano < s.start_time_unix_nano:
        out.append(f"{w}: ends before it starts")
    if s.kind == 0:
        out.append(f"{w}: kind unspecified")
    if s.status.message and s.status.code != 2:
        out.append(f"{w}: status message without status ERROR")
    check_attrs(s.attributes, w, out)
    for i, e in enumerate(s.events):
        check_attrs(e.attributes, f"{w} event[{i}]", out)
        if not e.time_unix_nano or not e.name:
            out.append(f"{w} event[{i}]: time or name missing")
    for i, l in enumerate(s.links):
        check_id(l.trace_id, 16, f"{w} link[{i}] trace_id", out)
        check_id(l.span_id, 8, f"{w} link[{i}] span_id", out)
        check_attrs(l.attributes, f"{w} link[{i}]", out)


def check_metric(m, w, out):
    w = f"{w} metric {m.name!r}"
    kind = m.WhichOneof("data")
    if not m.name:
        out.append(f"{w}: empty name")
    if kind is None:
        out.append(f"{w}: no data")
        return 0
    data = getattr(m, kind)
    if kind in ("sum", "histogram", "exponential_histogram") and data.aggregation_temporality == 0:
        out.append(f"{w}: temporality unspecified")
    if not data.data_points:
        out.append(f"{w}: no data points")
    streams = set()
    for i, p in enumerate(data.data_points):
        pw = f"{w} point[{i}]"
        check_attrs(p.attributes, pw, out)
        key = tuple(sorted(kv.SerializeToString(deterministic=True) for kv in p.attributes))
        if key in streams:
            out.append(f"{pw}: attribute set repeated in one metric")
        streams.add(key)
        if not p.time_unix_nano:
            out.append(f"{pw}: time missing")
        if kind != "gauge" and not p.start_time_unix_nano:
            out.append(f"{pw}: start time missing")
        if p.start_time_unix_nano > p.time_unix_nano:
            out.append(f"{pw}: starts after its own time")
        if kind in ("gauge", "sum") and p.WhichOneof("value") is None and not p.flags & 1:
            out.append(f"{pw}: no value and no NO_RECORDED_VALUE flag")
        if kind == "histogram":
            bounds = list(p.explicit_bounds)
            if p.bucket_counts and len(p.bucket_counts) != len(bounds) + 1:
                out.append(f"{pw}: {len(p.bucket_counts)} buckets for {len(bounds)} bounds")
            if p.bucket_counts and sum(p.bucket_counts) != p.count:
                out.append(f"{pw}: buckets add up to {sum(p.bucket_counts)}, count is {p.count}")
            if any(a >= b for a, b in zip(bounds, bounds[1:])):
                out.append(f"{pw}: bounds not strictly increasing")
        if kind == "exponential_histogram":
            total = p.zero_count + sum(p.positive.bucket_counts) + sum(p.negative.bucket_counts)
            if total != p.count:
                out.append(f"{pw}: buckets add up to {total}, count is {p.count}")
        if kind in ("histogram", "exponential_histogram") and p.count and p.HasField("min") and p.HasField("max") and p.min > p.max:
            out.append(f"{pw}: min above max")
        for j, e in enumerate(getattr(p, "exemplars", [])):
            if not e.time_unix_nano or e.WhichOneof("value") is None:
                out.append(f"{pw} exemplar[{j}]: time or value missing")
            check_id(e.trace_id, 16, f"{pw} exemplar[{j}] trace_id", out, optional=True)
            check_id(e.span_id, 8, f"{pw} exemplar[{j}] span_id", out, optional=True)
    return len(data.data_points)


def check_log(r, w, out):
    check_attrs(r.attributes, w, out)
    check_id(r.trace_id, 16, w + " trace_id", out, optional=True)
    check_id(r.span_id, 8, w + " span_id", out, optional=True)
    if not r.time_unix_nano and not r.observed_time_unix_nano:
        out.append(f"{w}: neither time nor observed time")
    if not 0 <= r.severity_number <= 24:
        out.append(f"{w}: severity number {r.severity_number}")


def check(sig, msg):
    """(number of spans / data points / log records, findings)"""
    out, n = [], 0
    unknown_fields(msg, "request", out)
    for i, res in enumerate(getattr(msg, {"traces": "resource_spans", "metrics": "resource_metrics", "logs": "resource_logs"}[sig])):
        check_attrs(res.resource.attributes, f"resource[{i}]", out)
        if not any(kv.key == "service.name" for kv in res.resource.attributes):
            out.append(f"resource[{i}]: no service.name")
        for scope in getattr(res, {"traces": "scope_spans", "metrics": "scope_metrics", "logs": "scope_logs"}[sig]):
            w = f"scope {scope.scope.name!r}"
            check_attrs(scope.scope.attributes, w, out)
            if sig == "traces":
                for s in scope.spans:
                    check_span(s, w, out)
                n += len(scope.spans)
            elif sig == "metrics":
                n += sum(check_metric(m, w, out) for m in scope.metrics)
            else:
                for k, r in enumerate(scope.log_records):
                    check_log(r, f"{w} record[{k}]", out)
                n += len(scope.log_records)
    return n, out
