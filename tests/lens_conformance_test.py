"""What lens puts on the wire, compared with what nemo-lens does (tests/data/lens).

scenarios.json holds sequences of telemetry operations, golden/NAME.jsonl what a receiver decoded when nemo-lens 0.2.0 ran
them (one request a line), golden/observed.json what the program saw. LENS_REPLAY names the program that runs the same
operations through lens. Both sides are brought into one form: ids are numbered as they appear, times are dropped, and so
is what tells of the machine (process.*, host.*, telemetry.sdk.*, run ids drawn at random). What differs on purpose stands
in differences.json, with the reason.

Needs the packages of requirements-test.txt (.venv-test, made by `tools/bootstrap test`).
"""

import copy
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS / "receivers"))
from otlp_sink import Sink
from rotel_agent import running_rotel

REPLAY = os.environ.get("LENS_REPLAY", str(TESTS.parent / "build/release/tests/lens_replay"))
DATA = TESTS / "data/lens"
SCENARIOS = json.loads((DATA / "scenarios.json").read_text())
OBSERVED = json.loads((DATA / "golden/observed.json").read_text())
WIRES = tuple(itertools.product(("grpc", "http/protobuf"), ("none", "gzip")))
HIDDEN_VARIABLES = re.compile(r"(OTEL|NEMO|MEGATRON|SLURM|WANDB|K8S|KUBERNETES|LENS)_|DEPLOYMENT_ENV$|ENVIRONMENT$|.*_proxy$", re.I)
TIMES = {"startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "observedTimeUnixNano"}
OF_THE_PROGRAM = {"exception.stacktrace", "code.file.path"}  # scrubbed in the golden files, too
ABSENT = "absent"


# ---------------------------------------------------------------- one form for both sides
def flat_value(value):
    """Leaves of an OTLP value by path, as "type:value"."""
    if "arrayValue" in value:
        elements = value["arrayValue"].get("values", [])
        leaves = {"": f"array:{len(elements)}"}
        for i, element in enumerate(elements):
            leaves |= {f"/{i}{path}": leaf for path, leaf in flat_value(element).items()}
        return leaves
    ((kind, content),) = value.items() if value else [("none", "")]
    return {"": f"{kind.removesuffix('Value')}:{content}"}


def flat_attributes(attributes, hides=lambda key: False):
    leaves = {}
    for attribute in attributes:
        key, value = attribute["key"], attribute["value"]
        if hides(key):
            continue
        if key in OF_THE_PROGRAM and value.get("stringValue"):
            value = {"stringValue": "(depends on the program)"}
        leaves |= {f"/{key}{path}": leaf for path, leaf in flat_value(value).items()}
    return leaves


class Normaliser:
    """Requests of one scenario as leaves by path."""

    def __init__(self, scenario):
        self.known = json.dumps(scenario)
        self.names = {"traceId": {}, "spanId": {}}
        self.leaves = {}
        self.counts = {}

    def id(self, kind, text):
        """A number by appearance; ids that the scenario gives stay as they are."""
        if text in self.known:
            return text
        return self.names[kind].setdefault(text, f"{kind} {len(self.names[kind]) + 1}")

    def next(self, kind):
        self.counts[kind] = self.counts.get(kind, -1) + 1
        return f"{kind}/{self.counts[kind]}"

    def put(self, path, content):
        """Any message: attributes become their keys, times their presence, ids numbers."""
        if isinstance(content, list):
            for i, element in enumerate(content):
                self.put(f"{path}/{i}", element)
        elif isinstance(content, dict):
            for key, value in content.items():
                if key == "attributes":
                    self.leaves |= {f"{path}/{key}{rest}": leaf for rest, leaf in flat_attributes(value).items()}
                elif key in TIMES:
                    self.leaves[f"{path}/{key}"] = "a time"
                elif key in ("traceId", "spanId", "parentSpanId"):
                    self.leaves[f"{path}/{key}"] = self.id("traceId" if key == "traceId" else "spanId", value)
                elif key == "body":
                    self.leaves |= {f"{path}/{key}{rest}": leaf for rest, leaf in flat_value(value).items()}
                else:
                    self.put(f"{path}/{key}", value)
        else:
            self.leaves[path] = f"{type(content).__name__}:{content}"

    def resource(self, resource):
        leaves = flat_attributes(resource["attributes"], lambda key: key.startswith(("process.", "host.", "telemetry.sdk.")))
        run_id = leaves["/nemo.run.id"].removeprefix("string:")
        if re.fullmatch("[0-9a-f]{12}", run_id):
            leaves = {path: leaf.replace(run_id, "(run id)") for path, leaf in leaves.items()}
        leaves = {f"resource{path}": leaf for path, leaf in leaves.items()}
        before = {path: leaf for path, leaf in self.leaves.items() if path.startswith("resource/")}
        assert before in ({}, leaves), f"resources differ between requests: {before} {leaves}"
        self.leaves |= leaves

    def request(self, signal, request):
        group, scopes, items = {
            "traces": ("resourceSpans", "scopeSpans", "spans"),
            "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
            "logs": ("resourceLogs", "scopeLogs", "logRecords"),
        }[signal]
        collection = self.next("metrics") if signal == "metrics" else None
        for part in request[group]:
            self.resource(part["resource"])
            for scope in part[scopes]:
                for item in scope[items]:
                    path = f"{collection}/{item['name']}" if collection else self.next(items)
                    self.put(path, {"scope": scope["scope"], "scopeSchemaUrl": scope.get("schemaUrl", "")} | item)

    def observed(self, outcome):
        self.leaves["is_exporting"] = str(outcome["is_exporting"])
        for entry in outcome["observed"]:
            carrier = dict(entry.get("carrier", {}))
            if "traceparent" in carrier:
                version, trace_id, span_id, flags = carrier["traceparent"].split("-")
                carrier["traceparent"] = "-".join((version, self.id("traceId", trace_id), self.id("spanId", span_id), flags))
            self.put(self.next("observed"), entry | ({"carrier": carrier} if carrier else {}))


def normalise(name, rows, outcome):
    normaliser = Normaliser(SCENARIOS[name])
    for row in rows:
        normaliser.request(row["signal"], row["request"])
    normaliser.observed(outcome)
    return normaliser.leaves


def golden_rows(name):
    return [json.loads(line) for line in (DATA / f"golden/{name}.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------- differences
class Allowed:
    """differences.json: a list of {scenario, path, golden, pharos, reason}; all but the reason are regular expressions that
    must match as a whole, the last two the leaves, "absent" where there is none."""

    FIELDS = ("scenario", "path", "golden", "pharos")

    def __init__(self, entries):
        self.entries = entries
        self.used = [False] * len(entries)
        for entry in entries:
            assert set(entry) == {*self.FIELDS, "reason"} and entry["reason"], entry

    def allows(self, *difference):
        for i, entry in enumerate(self.entries):
            if all(re.fullmatch(entry[field], text, re.S) for field, text in zip(self.FIELDS, difference)):
                self.used[i] = True
                return True
        return False

    def unused(self):
        return [entry for entry, used in zip(self.entries, self.used) if not used]


def differences(name, golden, pharos):
    return [
        (name, path, golden.get(path, ABSENT), pharos.get(path, ABSENT))
        for path in sorted(golden.keys() | pharos.keys())
        if golden.get(path, ABSENT) != pharos.get(path, ABSENT)
    ]


def load_allowed():
    return Allowed(json.loads((DATA / "differences.json").read_text()))


# ---------------------------------------------------------------- running
def replay(name, port, protocol, compression, *arguments, prefix="NEMO_LENS"):
    """Runs a scenario; returns what the program saw."""
    scenario = SCENARIOS[name]
    kept = {key: value for key, value in os.environ.items() if not HIDDEN_VARIABLES.match(key)}
    wanted = {"NEMO_LENS_ENABLED": "1", **scenario.get("env", {})}
    environment = kept | {key.replace("NEMO_LENS", prefix): value for key, value in wanted.items()} | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
    }
    result = subprocess.run(
        [REPLAY, DATA / "scenarios.json", name, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


class ConformanceTest(unittest.TestCase):
    def sink(self):
        sink = Sink(http_port=0, grpc_port=0)
        sink.start()
        self.addCleanup(sink.stop)
        return sink

    def check(self, allowed, name, rows, outcome):
        golden = normalise(name, golden_rows(name), OBSERVED[name])
        found = differences(name, golden, normalise(name, rows, outcome))
        self.assertEqual([difference for difference in found if not allowed.allows(*difference)], [])


class Direct(ConformanceTest):
    def test_every_scenario_on_every_wire(self):
        allowed, sink = load_allowed(), self.sink()
        for name, (protocol, compression) in itertools.product(SCENARIOS, WIRES):
            with self.subTest(name, protocol=protocol, compression=compression):
                sink.reset()
                port = sink.grpc_port if protocol == "grpc" else sink.http_port
                outcome = replay(name, port, protocol, compression)
                rows = sink.requests()
                self.assertEqual(sink.findings(), [])
                self.assertLessEqual({row["transport"] for row in rows}, {protocol.removesuffix("/protobuf")})
                if protocol != "grpc":
                    encoding = "gzip" if compression == "gzip" else "identity"
                    self.assertLessEqual({row["encoding"] for row in rows}, {encoding})
                self.check(allowed, name, rows, outcome)
        self.assertEqual(allowed.unused(), [])

    def test_variables_of_megatron_mean_the_same(self):
        sink, arguments = self.sink(), ("--prefix", "MEGATRON_OTEL", "--prefix", "NEMO_LENS")
        outcome = replay("step_per_step", sink.grpc_port, "grpc", "none", *arguments, prefix="MEGATRON_OTEL")
        self.check(load_allowed(), "step_per_step", sink.requests(), outcome)


class ThroughAnAgent(ConformanceTest):
    def test_every_scenario_on_every_wire(self):
        allowed, direct, behind = load_allowed(), self.sink(), self.sink()
        with running_rotel(behind) as ports:
            for name in SCENARIOS:
                direct.reset()
                replay(name, direct.grpc_port, "grpc", "none")
                num_items = sum(row["items"] for row in direct.requests())
                for protocol, compression in WIRES:
                    with self.subTest(name, protocol=protocol, compression=compression):
                        behind.reset()
                        outcome = replay(name, ports[protocol], protocol, compression)
                        rows = behind.wait(lambda rows: sum(row["items"] for row in rows) >= num_items)
                        self.assertEqual(behind.findings(), [])
                        self.check(allowed, name, rows, outcome)
        self.assertEqual(allowed.unused(), [])


class Comparison(unittest.TestCase):
    """That what is compared above can differ."""

    # What the normal form is to hide: what tells of the machine or the program, values of times, ids as such (a lone one
    # can be anything), and empty messages.
    HIDDEN = re.compile(
        r".*/(telemetry\.sdk|host|process)\.\w+(\.\w+)?(/.*)?|.*UnixNano|.*/(trace|span)Id|.*/(service\.instance|nemo\.run)\.id/.*"
        r"|.*/(exception\.stacktrace|code\.file\.path)/value/stringValue|.*/status"
    )

    def changes(self, content, path=""):
        """(path, copy of `content` in which the part at that path is another one or missing)."""
        if isinstance(content, (dict, list)):
            for key in content.keys() if isinstance(content, dict) else range(len(content)):
                here = f"{path}/{key}"
                if isinstance(content[key], dict) and "key" in content[key]:
                    here = f"{path}/{content[key]['key']}"
                shorter = copy.copy(content)
                del shorter[key]
                yield here, shorter
                for changed_path, changed in self.changes(content[key], here):
                    with_change = copy.copy(content)
                    with_change[key] = changed
                    yield changed_path, with_change
        elif isinstance(content, bool):
            yield path, not content
        elif content is not None:
            yield path, content + "0" if isinstance(content, str) else -1 - content

    def is_noticed(self, name, rows):
        golden = normalise(name, golden_rows(name), OBSERVED[name])
        try:
            return differences(name, golden, normalise(name, rows, OBSERVED[name])) != []
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
            return True  # no longer a request at all

    def test_no_change_of_a_golden_file_goes_unnoticed(self):
        for name in SCENARIOS:
            rows = golden_rows(name)
            self.assertFalse(self.is_noticed(name, rows))
            unnoticed = [
                path
                for i, row in enumerate(rows)
                for path, request in self.changes(row["request"])
                if not self.is_noticed(name, [*rows[:i], row | {"request": request}, *rows[i + 1 :]])
            ]
            self.assertEqual([path for path in unnoticed if not self.HIDDEN.fullmatch(path)], [], name)

    def test_other_parents_and_links_are_noticed(self):
        for name, path in (("step_per_step", "parentSpanId"), ("errors", "traceId"), ("logs", "spanId")):
            text = (DATA / f"golden/{name}.jsonl").read_text()
            ids = sorted(set(re.findall(rf'"{path}": "(\w+)"', text)))
            rows = [json.loads(line) for line in text.replace(ids[0], ids[-1] if len(ids) > 1 else ids[0][::-1], 1).splitlines()]
            self.assertTrue(self.is_noticed(name, rows), name)

    def test_entries_match_as_a_whole_and_are_counted(self):
        entry = {"scenario": "errors", "path": "spans/1/.*", "golden": "string:a", "pharos": ABSENT, "reason": "for this test"}
        allowed = Allowed([entry])
        self.assertFalse(allowed.allows("errors", "spans/11/x", "string:a", ABSENT))
        self.assertFalse(allowed.allows("errors", "spans/1/x", "string:ab", ABSENT))
        self.assertEqual(allowed.unused(), [entry])
        self.assertTrue(allowed.allows("errors", "spans/1/x", "string:a", ABSENT))
        self.assertEqual(allowed.unused(), [])


if __name__ == "__main__":
    unittest.main()
