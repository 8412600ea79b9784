"""Telemetry never hurts its process, and every loss is counted: receivers, disks, terminals and signals at their worst.

The program of LENS_LOAD records a known amount and reports what became of it; what the receiver got must be the rest.
Needs the packages of requirements-test.txt (.venv-test, made by `tools/bootstrap test`) and the program openssl.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
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
from telemetry_load import AMOUNT, LOAD, PATIENCE, PROTOCOLS, SIGNALS, Outcome, arguments_of, clean_environment, enabled, endpoint, load, read_ring


def accepted_items(sink):
    return {name: sum(row["items"] for row in sink.requests(name) if row["accepted"]) for name in SIGNALS}


def numbers_at(sink):
    """The attribute `number` of each span that was accepted, in order of arrival."""
    found = []
    for row in sink.requests("traces"):
        for resource in row["request"]["resourceSpans"] if row["accepted"] else ():
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    found += [int(pair["value"]["intValue"]) for pair in span.get("attributes", ()) if pair["key"] == "number"]
    return found


class TelemetryTest(unittest.TestCase):
    maxDiff = None

    def sink(self, *faults, **options):
        sink = Sink(http_port=options.pop("http_port", 0), grpc_port=options.pop("grpc_port", 0), faults=faults, **options)
        sink.start()
        self.addCleanup(sink.stop)
        return sink

    def folder(self):
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="pharos_load_")))

    def at_once(self, function, cases):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for future in [pool.submit(function, *case) for case in cases]:
                future.result()

    def assert_adds_up(self, outcome, sink=None):
        """Ended well; recorded = arrived + counted as lost; the loss lines say these numbers."""
        self.assertEqual(outcome.code, 0, outcome.errors)
        report, errors = outcome.report, outcome.errors
        self.assertEqual(report["recorded"], outcome.amounts.get("spans", 0))
        self.assertEqual(report["emitted_logs"] + report["suppressed_logs"], outcome.amounts.get("logs", 0))
        ended = report["recorded"] + report["truncated"]
        self.assertEqual(ended - report["overwritten"], report["traces"]["exported"] + outcome.lost("traces"), report)
        self.assertEqual(report["emitted_logs"], report["logs"]["exported"] + outcome.lost("logs"), report)
        self.assertEqual([report[name]["queued"] for name in SIGNALS], [0, 0, 0])
        if sink:
            taken = {name: report[name]["exported"] + report[name]["rejected"] for name in SIGNALS}
            self.assertEqual(accepted_items(sink), taken)
            self.assertEqual(len(set(numbers_at(sink))), taken["traces"] - report["truncated"])
            self.assertEqual(sink.findings(), [])
        said = re.findall(r"of (\d+) spans (\d+) were overwritten, (\d+) refused, (\d+) not exported", errors)
        numbers = [ended + report["refused"], report["overwritten"], report["refused"], outcome.lost("traces")]
        self.assertEqual(said, [tuple(map(str, numbers))] if any(numbers[1:]) else [], errors)
        said = re.findall(r"(\d+) metric points and (\d+) log records were not exported", errors)
        numbers = [outcome.lost("metrics"), outcome.lost("logs")]
        self.assertEqual(said, [tuple(map(str, numbers))] if any(numbers) else [], errors)

    def assert_all_arrived(self, outcome, sink):
        self.assert_adds_up(outcome, sink)
        self.assertEqual(outcome.errors, "")
        self.assertGreater(outcome.report["metrics"]["exported"], 0)

    def assert_said_once(self, errors, text, where, signals=SIGNALS):
        """One line for each signal: what happened, where; it says that the run goes on."""
        for name in signals:
            lines = [line for line in errors.splitlines() if line.startswith(f"telemetry: OTLP {name}: ")]
            self.assertEqual(len(lines), 1, errors)
            self.assertIn(text, lines[0])
            self.assertIn(where, lines[0])
            self.assertTrue(lines[0].endswith("; the run goes on, losses are counted"), lines[0])


class Receivers(TelemetryTest):
    def test_healthy(self):
        def check(protocol):
            sink = self.sink()
            environment = enabled({"ENDPOINT": endpoint(sink, protocol), "PROTOCOL": protocol})
            outcome = load(environment, open_spans=2, flush_ms=30000, **AMOUNT)
            self.assert_all_arrived(outcome, sink)
            self.assertIs(outcome.report["is_flushed"], True)
            self.assertEqual(numbers_at(sink), list(range(600)))
            self.assertEqual(outcome.report["truncated"], 2)

        self.at_once(check, [(protocol,) for protocol in PROTOCOLS])

    def test_faults_that_lose_everything(self):
        def check(protocol, faults, text, settings):
            sink = self.sink(*faults)
            where = settings.get("ENDPOINT") or endpoint(sink, protocol)
            environment = enabled({"ENDPOINT": where, "PROTOCOL": protocol, "TIMEOUT": 1000} | settings)
            outcome = load(environment, shutdown_ms=1500, **AMOUNT)
            is_late = any("delay" in fault for fault in faults)  # it did arrive, but nobody can know
            self.assert_adds_up(outcome, None if is_late else sink)
            self.assertEqual([outcome.report[name]["exported"] for name in SIGNALS], [0, 0, 0])
            self.assert_said_once(outcome.errors, text, where)
            if "status" not in "".join(faults):  # nobody answered: what to look at
                self.assertIn("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", outcome.errors)

        cases = []
        for protocol in PROTOCOLS:
            status = "gRPC status INVALID_ARGUMENT" if protocol == "grpc" else "HTTP status 400"
            cases += [
                (protocol, (), "connect to 127.0.0.1", {"ENDPOINT": f"http://127.0.0.1:{free_port()}"}),
                (protocol, (), "Could not resolve host", {"ENDPOINT": "http://no-such-host.invalid:4317"}),
                (protocol, ("status=400",), status, {}),
                (protocol, ("reset",), "gave up after", {}),
                (protocol, ("delay=4",), "gave up after", {}),
            ]
        cases += [
            ("http/protobuf", ("status=503,retry_after=600",), "HTTP status 503", {}),
            ("grpc", ("status=503,retry_after=600",), "asks to wait for 600", {}),
        ]
        self.at_once(check, cases)

    def test_faults_that_pass_lose_nothing(self):
        def check(protocol, *faults):
            sink = self.sink(*(f"{fault},signal={name}" for fault in faults for name in SIGNALS))
            environment = enabled({"ENDPOINT": endpoint(sink, protocol), "PROTOCOL": protocol})
            outcome = load(environment, shutdown_ms=20000, **AMOUNT)
            self.assert_all_arrived(outcome, sink)

        faults = ("delay=0.3", "reset,count=1", "status=503,retry_after=1,count=2")
        self.at_once(check, [(protocol, fault) for protocol in PROTOCOLS for fault in faults])

    def test_partial_success(self):
        def check(protocol):
            sink = self.sink("partial=1,message=too old")
            environment = enabled({"ENDPOINT": endpoint(sink, protocol), "PROTOCOL": protocol})
            outcome = load(environment, **AMOUNT)
            self.assert_adds_up(outcome, sink)
            for name in SIGNALS:
                self.assertEqual(outcome.report[name]["rejected"], len(sink.requests(name)))
            self.assert_said_once(outcome.errors, "the receiver rejected 1: too old", endpoint(sink, protocol))

        self.at_once(check, [(protocol,) for protocol in PROTOCOLS])

    def test_receiver_that_comes_later(self):
        def check(protocol, timeout_ms):
            port = free_port()
            sinks = []
            begin = lambda: sinks.append(self.sink(**{"grpc_port" if protocol == "grpc" else "http_port": port}))
            timer = threading.Timer(2.5, begin)
            timer.start()
            where = f"http://127.0.0.1:{port}"
            environment = enabled({"ENDPOINT": where, "PROTOCOL": protocol, "TIMEOUT": timeout_ms})
            outcome = load(environment, shutdown_ms=20000, **(AMOUNT | {"seconds": 5}))
            timer.join()
            if timeout_ms >= 15000:  # longer than the receiver is away
                self.assert_all_arrived(outcome, sinks[0])
                return
            self.assert_adds_up(outcome)
            # On a busy machine an answer can come after the time-out: taken, and counted as not exported.
            for name, count in accepted_items(sinks[0]).items():
                self.assertGreaterEqual(count, outcome.report[name]["exported"] + outcome.report[name]["rejected"])
            self.assertGreater(outcome.report["traces"]["exported"], 0)
            self.assertGreater(outcome.report["traces"]["failed"], 0)
            self.assertEqual(sinks[0].findings(), [])
            self.assert_said_once(outcome.errors, "connect to 127.0.0.1", where)

        self.at_once(check, [(protocol, timeout) for protocol in PROTOCOLS for timeout in (500, 30000)])

    def test_queue_too_small_for_an_outage(self):
        sink = self.sink("status=503,retry_after=600")
        environment = enabled({"ENDPOINT": endpoint(sink), "PROTOCOL": "http/protobuf", "TIMEOUT": 60000},
                              OTEL_BSP_MAX_QUEUE_SIZE=50, OTEL_BSP_MAX_EXPORT_BATCH_SIZE=10)  # fmt: skip
        sink.set_faults(["delay=30"])
        outcome = load(environment, shutdown_ms=500, **AMOUNT)
        self.assert_adds_up(outcome)
        self.assertEqual(outcome.report["traces"]["failed"], 40)  # four requests of ten were under way
        self.assertEqual(outcome.report["traces"]["dropped"], 560)

    def test_shutdown_while_the_receiver_hangs(self):
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            where = "http://127.0.0.1:%d" % listener.getsockname()[1]

            def check(protocol):
                environment = enabled({"ENDPOINT": where, "PROTOCOL": protocol, "TIMEOUT": 3600000})
                outcome = load(environment, shutdown_ms=500, flush_ms=200, **AMOUNT)
                self.assert_adds_up(outcome)
                self.assertIs(outcome.report["is_flushed"], False)
                self.assertLess(outcome.report["shutdown_s"], 20)
                self.assertEqual([outcome.report[name]["exported"] for name in SIGNALS], [0, 0, 0])
                self.assert_said_once(outcome.errors, "without an answer", where)

            self.at_once(check, [(protocol,) for protocol in PROTOCOLS])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "only root may name another name server")
    def test_name_server_that_does_not_answer(self):
        folder = self.folder()
        (folder / "resolv.conf").write_text("nameserver 127.0.0.77\n")
        within = ["unshare", "-m", "sh", "-c", f'mount --bind {folder}/resolv.conf /etc/resolv.conf && exec "$@"', "sh"]
        if subprocess.run([*within, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("mounting is not allowed here")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.77", 53))
            environment = enabled({"ENDPOINT": "http://collector.example:4317", "TIMEOUT": 500})
            outcome = load(environment, within=within, shutdown_ms=500, **AMOUNT)
        self.assert_adds_up(outcome)
        self.assertLess(outcome.report["shutdown_s"], 20)
        self.assertNotIn("left behind", outcome.errors)
        self.assert_said_once(outcome.errors, "gave up after 1 try", "http://collector.example:4317")

    def test_dead_receiver_of_one_signal_leaves_the_others_alone(self):
        sink = self.sink()
        dead = f"http://127.0.0.1:{free_port()}"
        environment = enabled({
            "TRACES_ENDPOINT": dead, "METRICS_ENDPOINT": endpoint(sink) + "/v1/metrics", "METRICS_PROTOCOL": "http/protobuf",
            "LOGS_ENDPOINT": endpoint(sink, "grpc"), "TIMEOUT": 1000,
        })  # fmt: skip
        outcome = load(environment, shutdown_ms=5000, **AMOUNT)
        self.assert_adds_up(outcome, sink)
        self.assertEqual(outcome.report["traces"]["exported"], 0)
        self.assertEqual((outcome.lost("metrics"), outcome.lost("logs")), (0, 0))
        self.assertEqual(outcome.report["logs"]["exported"], AMOUNT["logs"])
        self.assert_said_once(outcome.errors, "connect to 127.0.0.1", dead, ["traces"])

    def test_two_processes_share_a_receiver(self):
        sink = self.sink()
        environment = enabled({"ENDPOINT": endpoint(sink, "grpc")})
        with concurrent.futures.ThreadPoolExecutor() as pool:
            outcomes = list(pool.map(lambda _: load(environment, **AMOUNT), range(2)))
        for outcome in outcomes:
            self.assert_adds_up(outcome)
            self.assertEqual(outcome.errors, "")
        arrived = accepted_items(sink)
        self.assertEqual(arrived, {name: sum(outcome.report[name]["exported"] for outcome in outcomes) for name in SIGNALS})
        self.assertEqual(sorted(numbers_at(sink)), sorted([*range(600), *range(600)]))

    def test_records_over_the_rate_are_counted(self):
        sink = self.sink()
        outcome = load(enabled({"ENDPOINT": endpoint(sink, "grpc")}), logs=5000)
        self.assert_adds_up(outcome, sink)
        self.assertGreater(outcome.report["suppressed_logs"], 4000)


@unittest.skipUnless(shutil.which("openssl"), "the program openssl makes the certificates")
class Tls(TelemetryTest):
    @classmethod
    def setUpClass(cls):
        cls.keys = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        make_certificates(cls.keys)

    def test_client_certificates(self):
        def check(protocol, knows_client):
            sink = self.sink(tls_cert=str(self.keys / "server.pem"), tls_key=str(self.keys / "server.key"), client_ca=str(self.keys / "ca.pem"))
            where = endpoint(sink, protocol, "https")
            settings = {"ENDPOINT": where, "PROTOCOL": protocol, "CERTIFICATE": self.keys / "ca.pem", "TIMEOUT": 1000}
            if knows_client:
                settings |= {"CLIENT_CERTIFICATE": self.keys / "client.pem", "CLIENT_KEY": self.keys / "client.key", "TIMEOUT": 10000}
            outcome = load(enabled(settings), **AMOUNT)
            if knows_client:
                self.assert_all_arrived(outcome, sink)
            else:
                self.assert_adds_up(outcome, sink)
                self.assertEqual(accepted_items(sink), dict.fromkeys(SIGNALS, 0))
                self.assert_said_once(outcome.errors, "", where)

        self.at_once(check, [(protocol, knows) for protocol in PROTOCOLS for knows in (False, True)])

    def test_mismatch(self):
        def check(protocol, is_receiver_secure):
            keys = {"tls_cert": str(self.keys / "server.pem"), "tls_key": str(self.keys / "server.key")}
            sink = self.sink(**(keys if is_receiver_secure else {}))  # of an authority that nobody knows
            where = endpoint(sink, protocol, "https")
            outcome = load(enabled({"ENDPOINT": where, "PROTOCOL": protocol}), **AMOUNT)
            self.assert_adds_up(outcome, sink)
            self.assertEqual(accepted_items(sink), dict.fromkeys(SIGNALS, 0))
            self.assert_said_once(outcome.errors, "TLS: ", where)
            self.assertIn("OTEL_EXPORTER_OTLP_CERTIFICATE", outcome.errors)

        self.at_once(check, [(protocol, secure) for protocol in PROTOCOLS for secure in (False, True)])


class Files(TelemetryTest):
    def lines(self, folder, name):
        return (folder / "trace" / f"{name}.jsonl").read_text().splitlines()

    def test_lines_are_written(self):
        folder = self.folder()
        outcome = load(enabled(NEMO_LENS_EXPORTER="file"), run_folder=folder, **AMOUNT)
        self.assert_adds_up(outcome)
        self.assertEqual(outcome.errors, "")
        self.assertEqual(len(self.lines(folder, "spans")), 600)
        self.assertEqual(len(self.lines(folder, "logs")), 40)

    def test_device_without_room(self):
        folder = self.folder()
        (folder / "trace").mkdir()
        for name in ("spans", "metrics", "logs"):
            (folder / "trace" / f"{name}.jsonl").symlink_to("/dev/full")
        outcome = load(enabled(NEMO_LENS_EXPORTER="file"), run_folder=folder, **AMOUNT)
        self.assert_adds_up(outcome)
        self.assertEqual([outcome.report[name]["exported"] for name in SIGNALS], [0, 0, 0])
        self.assertEqual(outcome.errors.count("No space left on device"), 1, outcome.errors)
        self.assertIn("spans.jsonl", outcome.errors)

    @unittest.skipUnless(os.geteuid() == 0, "only root may mount a small file system")
    def test_disk_that_fills_up(self):
        folder = self.folder()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=248k", "tmpfs", folder], check=False, capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting is not allowed here")
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=False)
        outcome = load(enabled(NEMO_LENS_EXPORTER="file"), run_folder=folder, ring=1, **(AMOUNT | {"seconds": 3}))
        self.assert_adds_up(outcome)
        self.assertIn("telemetry: no room for the ring", outcome.errors)
        self.assertEqual(outcome.errors.count("failed: No space left on device"), 1, outcome.errors)
        spans = [json.loads(line) for line in self.lines(folder, "spans")]  # whole lines
        self.assertEqual(len(spans), outcome.report["traces"]["exported"])
        self.assertGreater(len(spans), 0)
        self.assertGreater(outcome.report["traces"]["failed"], 0)

    def test_full_file_beside_a_healthy_receiver(self):
        sink = self.sink()
        folder = self.folder()
        for name in ("spans", "metrics", "logs"):
            (folder / f"{name}.jsonl").symlink_to("/dev/full")
        outcome = load(enabled({"ENDPOINT": endpoint(sink, "grpc")}), file=folder / "spans.jsonl", **AMOUNT)
        self.assert_adds_up(outcome, sink)
        self.assertEqual([outcome.lost(name) for name in SIGNALS], [0, 0, 0])
        lost = sum(outcome.report[name]["failed_locally"] for name in SIGNALS)
        self.assertEqual(lost, sum(outcome.report[name]["exported"] for name in SIGNALS))
        self.assertIn(f"telemetry: {lost} items that went out over OTLP were not written", outcome.errors)


class Console(TelemetryTest):
    def run_console(self, stdout, folder, *, shell_redirection=False, **amounts):
        command = [LOAD, *arguments_of(report=folder / "report.json", **amounts)]
        if shell_redirection:
            command = ["sh", "-c", 'exec "$@" >&-', "sh", *map(str, command)]
        finished = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
                                  timeout=PATIENCE, env=enabled(NEMO_LENS_EXPORTER="console"))  # fmt: skip
        return Outcome(finished.returncode, json.loads((folder / "report.json").read_text()), finished.stderr, amounts)

    def test_closed_output(self):
        folder = self.folder()
        outcome = self.run_console(None, folder, shell_redirection=True, run_folder=folder / "run", ring=1, spans=50, logs=5)
        self.assert_adds_up(outcome)
        self.assertEqual(outcome.report["traces"]["failed"], 50)
        self.assertIn("exporter console failed: the output was closed", outcome.errors)
        self.assertEqual(read_ring(folder / "run")["numbers"], list(range(50)))  # which has not taken its place

    def test_reader_that_left(self):
        folder = self.folder()
        reading, writing = os.pipe()
        os.close(reading)
        outcome = self.run_console(writing, folder, spans=50, logs=5)
        os.close(writing)
        self.assert_adds_up(outcome)
        self.assertEqual(outcome.report["traces"]["failed"], 50)
        self.assertEqual(outcome.errors.count("Broken pipe"), 1, outcome.errors)

    def test_reader_that_does_not_read(self):
        folder = self.folder()
        reading, writing = os.pipe()
        outcome = self.run_console(writing, folder, spans=3000, shutdown_ms=200)
        os.close(writing)
        os.close(reading)
        self.assert_adds_up(outcome)
        self.assertEqual(outcome.report["traces"]["failed"], 3000)
        self.assertIn("left behind", outcome.errors)
        self.assertLess(outcome.report["shutdown_s"], 20)


class Endings(TelemetryTest):
    @contextlib.contextmanager
    def running(self, sink, folder, **amounts):
        """The program in its work, when the first spans have arrived."""
        environment = enabled({"ENDPOINT": endpoint(sink, "grpc")})
        arguments = arguments_of(spans=60000, seconds=60, ring=1, signals=1, run_folder=folder, open_spans=1, **amounts)
        process = subprocess.Popen([LOAD, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            sink.wait(lambda rows: sum(row["items"] for row in rows if row["signal"] == "traces") > 100, PATIENCE)
            yield process
        finally:
            process.kill()
            process.wait()
            process.stderr.close()

    def test_sigterm_flushes_everything(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            sink, folder = self.sink(), self.folder()
            with self.running(sink, folder) as process:
                process.send_signal(number)
                _, errors = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, -number)
                self.assertEqual(errors, "")
            ring = read_ring(folder)
            self.assertTrue(ring["is_shut_down"])
            self.assertEqual(numbers_at(sink), ring["numbers"])
            self.assertEqual(ring["numbers"], list(range(len(ring["numbers"]))))
            names = {span["name"] for row in sink.requests("traces") for scope in row["request"]["resourceSpans"][0]["scopeSpans"] for span in scope["spans"]}
            self.assertIn("lens_load.open", names)

    def test_sigkill_leaves_the_ring(self):
        sink, folder = self.sink(), self.folder()
        with self.running(sink, folder) as process:
            process.kill()
            process.wait(PATIENCE)
        ring = read_ring(folder)
        self.assertFalse(ring["is_shut_down"])
        self.assertGreaterEqual(ring["num_open"], 1)
        self.assertEqual(ring["num_overwritten"], 0)
        self.assertEqual(ring["numbers"], list(range(len(ring["numbers"]))))
        self.assertLessEqual(set(numbers_at(sink)), set(ring["numbers"]))

    def test_disabled_touches_nothing(self):
        sink, folder = self.sink(), self.folder()
        environment = clean_environment(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint(sink, "grpc"))
        outcome = load(environment, run_folder=folder, signals=1, **AMOUNT)
        self.assertEqual((outcome.code, outcome.errors), (0, ""))
        self.assertIs(outcome.report["is_active"], False)
        self.assertEqual((sink.requests(), list(folder.iterdir())), ([], []))


if __name__ == "__main__":
    unittest.main()
