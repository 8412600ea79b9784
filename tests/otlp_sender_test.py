"""OTLP as it leaves the process: the program of OTLP_PROBE sends to real receivers, healthy ones and faulty ones.

Needs the packages of requirements-test.txt (.venv-test, made by `tools/bootstrap test`) and the program openssl.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failed handshakes are wanted here
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "receivers"))
from certificates import make_certificates
from free_ports import free_port
from otlp_sink import Sink
from rotel_agent import running_rotel

PROBE = os.environ.get("OTLP_PROBE", "build/release/modules/lens/otlp_probe")
ALL = ("--spans", "4", "--points", "4", "--logs", "3")
SPANS = ("--spans", "4")
PROTOCOLS = ("grpc", "http/protobuf")
PATIENCE_MS = 60000  # where the time allowed is not what is tested
SLACK_S = 5  # of a busy machine; what must not be waited for takes longer


def probe_environment(settings):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_") and not name.lower().endswith("_proxy")}
    return kept | {f"OTEL_EXPORTER_OTLP_{name}": str(value) for name, value in settings.items()}


def send(*arguments, **settings):
    """Runs the probe; settings are OTEL_EXPORTER_OTLP_* variables. Returns its lines: outcomes, warnings and errors."""
    result = subprocess.run(
        [PROBE, *arguments], capture_output=True, text=True, check=False, timeout=60, env=probe_environment(settings)
    )
    assert result.stderr == "", result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def endpoint(sink, protocol, scheme="http"):
    return f"{scheme}://127.0.0.1:{sink.grpc_port if protocol == 'grpc' else sink.http_port}"


class SenderTest(unittest.TestCase):
    def sink(self, *faults, **options):
        sink = Sink(http_port=options.pop("http_port", 0), grpc_port=options.pop("grpc_port", 0), faults=faults, **options)
        sink.start()
        self.addCleanup(sink.stop)
        return sink

    def each_protocol(self, function):
        """Runs function(protocol) for both at once: most of these tests wait."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for future in [pool.submit(function, protocol) for protocol in PROTOCOLS]:
                future.result()

    def send_spans(self, sink, protocol, **settings):
        (outcome,) = send(*SPANS, ENDPOINT=endpoint(sink, protocol), PROTOCOL=protocol, **settings)
        return outcome

    def assert_counts(self, outcome, accepted=0, rejected=0, failed=0, message=""):
        found = (outcome["accepted"], outcome["rejected"], outcome["failed"])
        self.assertEqual(found, (accepted, rejected, failed), outcome)
        self.assertIn(message, outcome["message"])


class HealthyReceiver(SenderTest):
    def test_all_signals_arrive_without_a_finding(self):
        requests = {}
        for protocol in PROTOCOLS:
            for compression in ("none", "gzip"):
                with self.subTest(protocol, compression=compression):
                    sink = self.sink()
                    lines = send(
                        *ALL,
                        ENDPOINT=endpoint(sink, protocol),
                        PROTOCOL=protocol,
                        COMPRESSION=compression,
                        HEADERS="Api-Key=a%20b=c,x-team=pharos",
                    )
                    self.assertEqual([line["message"] for line in lines], [""] * 3)
                    rows = {row["signal"]: row for row in sink.requests()}
                    self.assertEqual({name: row["items"] for name, row in rows.items()}, {"traces": 4, "metrics": 4, "logs": 3})
                    self.assertEqual(sink.findings(), [])
                    for row in rows.values():
                        self.assertEqual(row["headers"]["api-key"], "a b=c")
                        self.assertEqual(row["headers"]["x-team"], "pharos")
                        self.assertTrue(row["headers"]["user-agent"].startswith("OTel-OTLP-Exporter-Pharos/"), row["headers"])
                        self.assertEqual(row["transport"], "grpc" if protocol == "grpc" else "http")
                        if protocol == "grpc":
                            self.assertLessEqual(row["deadline_s"], 10)
                        else:
                            self.assertEqual(row["encoding"], "gzip" if compression == "gzip" else "identity")
                    # gRPC hides its compression; bytes on the wire do not. Requests may share a connection: the sum counts.
                    wire, body = (sum(row[name] for row in rows.values()) for name in ("wire_bytes", "body_bytes"))
                    self.assertEqual(wire < body, compression == "gzip", (wire, body))
                    requests[protocol, compression] = {name: row["request"] for name, row in rows.items()}
        for received in requests.values():
            self.assertEqual(received, requests["grpc", "none"])

    def test_what_the_wire_says(self):
        sink = self.sink()
        send(*ALL, ENDPOINT=endpoint(sink, "grpc"))
        rows = {row["signal"]: row["request"] for row in sink.requests()}
        helpers, lens = rows["traces"]["resourceSpans"][0]["scopeSpans"]
        self.assertEqual([helpers["scope"], lens["scope"]], [{"name": "nemo.lens.helpers"}, {"name": "nemo.lens"}])
        root = helpers["spans"][0]
        self.assertEqual((root["kind"], root["flags"], root["status"]), (1, 0x100, {}))
        self.assertNotIn("parentSpanId", root)
        self.assertEqual(helpers["spans"][1]["flags"], 0x300)  # remote parent
        failed = lens["spans"][0]
        self.assertEqual(failed["status"], {"code": 2, "message": "ValueError: boom"})
        self.assertEqual(failed["parentSpanId"], root["spanId"])
        self.assertEqual([link["flags"] for link in failed["links"]], [0x100, 0x300])
        self.assertEqual(failed["droppedAttributesCount"], 3)
        values = {pair["key"]: pair["value"] for pair in failed["attributes"]}
        self.assertEqual(values["nothing"], {"arrayValue": {}})
        self.assertEqual(values["empty"], {"stringValue": ""})
        self.assertEqual(values["flags"], {"arrayValue": {"values": [{"boolValue": True}, {"boolValue": False}]}})
        metrics = rows["metrics"]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        self.assertEqual(set().union(*metrics) - {"name", "description", "unit"}, {"gauge", "sum", "histogram", "exponentialHistogram"})
        self.assertNotIn("startTimeUnixNano", metrics[0]["gauge"]["dataPoints"][0])
        records = [scope["logRecords"][0] for scope in rows["logs"]["resourceLogs"][0]["scopeLogs"]]
        self.assertNotIn("flags", records[0])
        self.assertEqual((records[1]["flags"], records[1]["spanId"]), (3, root["spanId"]))

    def test_signals_may_have_endpoints_of_their_own(self):
        sink = self.sink()
        lines = send(
            *ALL,
            ENDPOINT=endpoint(sink, "grpc"),
            LOGS_PROTOCOL="http/protobuf",
            LOGS_ENDPOINT=endpoint(sink, "http/protobuf") + "/v1/logs",
        )
        self.assertEqual(sum(line["accepted"] for line in lines), 11)
        self.assertEqual({row["signal"]: row["transport"] for row in sink.requests()}, {"traces": "grpc", "metrics": "grpc", "logs": "http"})

    def test_many_requests_at_once(self):
        def check(protocol):
            sink = self.sink()
            where = {"ENDPOINT": endpoint(sink, protocol), "PROTOCOL": protocol}
            lines = send(*ALL, "--requests", "20", COMPRESSION="gzip", TIMEOUT=PATIENCE_MS, **where)
            self.assertEqual(sum(line["accepted"] for line in lines), 220, lines)
            self.assertEqual(sink.findings(), [])
            self.assertEqual(len(sink.requests()), 60)  # none was sent twice

        self.each_protocol(check)


class FaultyReceiver(SenderTest):
    def test_fault_then_recovery(self):
        """One fault, then health: everything is delivered at the second try, not before the receiver's wish."""
        cases = [  # fault, settings, least seconds
            ("status=503,retry_after=1.5", {}, 1.5),
            ("status=503,retry_after=3,retry_style=date", {}, 1.9),  # a date has whole seconds
            ("status=429,retry_after=1", {}, 0.99),
            ("status=502", {}, 0.8),
            ("reset", {}, 0.8),
            ("truncate", {}, 0.8),
            ("delay=6", {"TIMEOUT": "10000"}, 5.0),  # the first try may take half of the time
        ]

        def check(protocol, fault, settings, least_seconds):
            sink = self.sink(fault + ",count=1")
            outcome = self.send_spans(sink, protocol, **settings)
            self.assert_counts(outcome, accepted=4)
            self.assertGreaterEqual(outcome["seconds"], least_seconds, fault)
            self.assertEqual(len(sink.requests()), 2, fault)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            futures = [pool.submit(check, protocol, *case) for protocol in PROTOCOLS for case in cases]
            for future in futures:
                future.result()

    def test_refusals_are_not_retried(self):
        for protocol in PROTOCOLS:
            for fault, message in [
                ("status=400", "INVALID_ARGUMENT: injected" if protocol == "grpc" else "HTTP status 400: injected"),
                ("status=401", "UNAUTHENTICATED" if protocol == "grpc" else "HTTP status 401"),
                ("status=500", "INTERNAL" if protocol == "grpc" else "HTTP status 500"),
            ]:
                sink = self.sink(fault)
                self.assert_counts(self.send_spans(sink, protocol), failed=4, message=message)
                self.assertEqual(len(sink.requests()), 1)
        sink = self.sink("code=RESOURCE_EXHAUSTED")  # without RetryInfo
        self.assert_counts(self.send_spans(sink, "grpc"), failed=4, message="RESOURCE_EXHAUSTED")
        self.assertEqual(len(sink.requests()), 1)

    def test_partial_success_and_unreadable_answers(self):
        for protocol in PROTOCOLS:
            for fault, expected in [
                ("partial=3,message=too old", {"accepted": 1, "rejected": 3, "message": "rejected 3: too old"}),
                ("partial=99", {"accepted": 0, "rejected": 4}),
                ("partial=0,message=slow down", {"accepted": 4, "message": "warns: slow down"}),
                ("garbage", {"accepted": 4, "message": "not one of OTLP"}),
            ]:
                with self.subTest(protocol, fault=fault):
                    sink = self.sink(fault)
                    self.assert_counts(self.send_spans(sink, protocol), **expected)
                    self.assertEqual(len(sink.requests()), 1)

    def test_giving_up(self):
        def absent(protocol):
            (outcome,) = send(*SPANS, ENDPOINT=f"http://127.0.0.1:{free_port()}", PROTOCOL=protocol, TIMEOUT=4000)
            self.assert_counts(outcome, failed=4)
            self.assertRegex(outcome["message"], "gave up after [2-9] tries")
            self.assertLess(outcome["seconds"], 4 + SLACK_S)

        def unknown_host(protocol):
            (outcome,) = send(*SPANS, ENDPOINT="http://no-such-host.invalid:4317", PROTOCOL=protocol, TIMEOUT=1500)
            self.assert_counts(outcome, failed=4, message="gave up after")
            self.assertLess(outcome["seconds"], 1.5 + SLACK_S)

        def slow(protocol):
            outcome = self.send_spans(self.sink("delay=8"), protocol, TIMEOUT=1000)
            self.assert_counts(outcome, failed=4, message="gave up after 1 try")
            self.assertLess(outcome["seconds"], 1 + SLACK_S)

        def long_wait(protocol):
            sink = self.sink("status=503,retry_after=600")
            outcome = self.send_spans(sink, protocol)
            self.assert_counts(outcome, failed=4, message="asks to wait for 600.0 s")
            self.assertLess(outcome["seconds"], SLACK_S)

        for function in (absent, unknown_host, slow, long_wait):
            with self.subTest(function.__name__):
                self.each_protocol(function)

    def test_cancel_ends_everything(self):
        def check(protocol):
            sink = self.sink("delay=8,count=1,signal=traces", "status=503,signal=logs")  # one under way, one waiting
            lines = send(
                *ALL, "--cancel-after-ms", "300", ENDPOINT=endpoint(sink, protocol), PROTOCOL=protocol
            )
            outcomes = {line["signal"]: line for line in lines}
            self.assert_counts(outcomes["metrics"], accepted=4)
            self.assert_counts(outcomes["traces"], failed=4, message="cancelled after")
            self.assert_counts(outcomes["logs"], failed=3, message="cancelled after")
            self.assertLess(outcomes["traces"]["seconds"], 0.3 + SLACK_S)

        self.each_protocol(check)

    def test_endpoint_that_appears_later(self):
        def check(protocol):
            port = free_port()
            appear = lambda: self.sink(**{"grpc_port" if protocol == "grpc" else "http_port": port})
            timer = threading.Timer(1.2, appear)
            timer.start()
            (outcome,) = send(*SPANS, ENDPOINT=f"http://127.0.0.1:{port}", PROTOCOL=protocol, TIMEOUT=15000)
            timer.join()
            self.assert_counts(outcome, accepted=4)

        self.each_protocol(check)

    def test_the_other_protocols_port(self):
        sink = self.sink()
        (outcome,) = send(*SPANS, ENDPOINT=endpoint(sink, "http/protobuf"), PROTOCOL="grpc", TIMEOUT=1500)
        self.assert_counts(outcome, failed=4)
        (outcome,) = send(*SPANS, ENDPOINT=endpoint(sink, "grpc"), PROTOCOL="http/protobuf", TIMEOUT=1500)
        self.assert_counts(outcome, failed=4)


@unittest.skipUnless(shutil.which("openssl"), "the program openssl makes the certificates")
class Tls(SenderTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        make_certificates(cls.folder, strangers=("stranger",))

    def tls_sink(self, **options):
        return self.sink(tls_cert=str(self.folder / "server.pem"), tls_key=str(self.folder / "server.key"), **options)

    def send_tls(self, sink, protocol, arguments=SPANS, **settings):
        files = {name: self.folder / file for name, file in settings.items() if str(file).endswith((".pem", ".key"))}
        return send(*arguments, ENDPOINT=endpoint(sink, protocol, "https"), PROTOCOL=protocol, **(settings | files))

    def test_client_certificates(self):
        sink = self.tls_sink(client_ca=str(self.folder / "ca.pem"))
        known = {"CERTIFICATE": "ca.pem", "CLIENT_CERTIFICATE": "client.pem", "CLIENT_KEY": "client.key"}
        for protocol in PROTOCOLS:
            lines = self.send_tls(sink, protocol, (*ALL, "--requests", "5"), COMPRESSION="gzip", **known)
            self.assertEqual(sum(line["accepted"] for line in lines), 55, lines)
            self.assertEqual(sink.findings(), [])
            for bad in (
                {"CERTIFICATE": "ca.pem"},
                known | {"CLIENT_CERTIFICATE": "stranger.pem", "CLIENT_KEY": "stranger.key"},
            ):
                (outcome,) = self.send_tls(sink, protocol, TIMEOUT=1500, **bad)
                self.assert_counts(outcome, failed=4)
                self.assertLess(outcome["seconds"], 1.5 + SLACK_S)

    def test_many_requests_share_a_connection(self):
        sink = self.tls_sink()
        lines = self.send_tls(sink, "grpc", (*ALL, "--requests", "10"), CERTIFICATE="ca.pem")
        self.assertEqual(sum(line["accepted"] for line in lines), 110, lines)
        self.assertEqual(len(sink.fwd.conns), 1)

    def test_untrusted_receiver_is_refused_at_once(self):
        sink = self.tls_sink()
        for protocol in PROTOCOLS:
            for settings in ({"CERTIFICATE": "stranger.pem"}, {}):
                (outcome,) = self.send_tls(sink, protocol, **settings)
                self.assert_counts(outcome, failed=4, message="TLS: SSL certificate problem")
                self.assertLess(outcome["seconds"], SLACK_S)
        self.assertEqual(sink.requests(), [])

    def test_tls_to_a_receiver_without(self):
        sink = self.sink()
        for protocol in PROTOCOLS:
            (outcome,) = self.send_tls(sink, protocol, CERTIFICATE="ca.pem", TIMEOUT=1500)
            self.assert_counts(outcome, failed=4, message="wrong version number")


class ThirdParty(SenderTest):
    """Through rotel, an OTLP agent that shares no code with either side: what it passes on is what we sent it."""

    def test_passes_on_what_we_send(self):
        direct, behind = self.sink(), self.sink()
        send(*ALL, ENDPOINT=endpoint(direct, "grpc"))
        expected = {row["signal"]: row["request"] for row in direct.requests()}
        with running_rotel(behind) as ports:
            for protocol, port in ports.items():
                for compression in ("none", "gzip"):
                    with self.subTest(protocol, compression=compression):
                        behind.reset()
                        where = {"ENDPOINT": f"http://127.0.0.1:{port}", "PROTOCOL": protocol}
                        lines = send(*ALL, COMPRESSION=compression, TIMEOUT=PATIENCE_MS, **where)
                        self.assertEqual(sum(line["accepted"] for line in lines), 11, lines)
                        rows = behind.wait(lambda rows: len(rows) >= 3)
                        self.assertEqual({row["signal"]: row["request"] for row in rows}, expected)


class WrongEnvironment(unittest.TestCase):
    def test_errors_and_warnings_show_no_secret(self):
        (line,) = send(*SPANS, ENDPOINT="ftp://me:hunter2@host")
        self.assertIn("OTEL_EXPORTER_OTLP_ENDPOINT is not a URL", line["error"])
        self.assertNotIn("hunter2", line["error"])
        warning, outcome = send(*SPANS, ENDPOINT=f"http://me:hunter2@127.0.0.1:{free_port()}", HEADERS="hunter2", TIMEOUT=150)
        self.assertIn("entry 1 is left out", warning["warning"])
        self.assertNotIn("hunter2", warning["warning"] + outcome["message"])


if __name__ == "__main__":
    unittest.main()
