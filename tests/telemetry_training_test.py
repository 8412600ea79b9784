"""Telemetry in a training whose receiver is no good: the training does not notice. Needs .venv-test; PHAROS names the program."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import unittest

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failed handshakes are wanted here
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "receivers"))
import pharos_program
from free_ports import free_port
from otlp_sink import Sink
from telemetry_load import clean_environment, enabled, endpoint, read_ring


class Trainer(pharos_program.ProgramTest):
    """Training does not notice: same losses, exit status 0, an end."""

    def check(self, name, where, text):
        on = enabled({"ENDPOINT": where, "PROTOCOL": "http/protobuf", "TIMEOUT": 1000})
        finished = self.train(self.folder / name, env=on, timeout=240)
        self.assert_exit(finished, 0)
        self.assertEqual(pharos_program.losses(self.folder / name), pharos_program.losses(self.folder / "off"))
        said = [line for line in finished.stdout.splitlines() if line.startswith("telemetry: OTLP traces:")]
        self.assertEqual(len(said), 1, finished.stdout[-3000:])
        self.assertIn(text, said[0])
        of, *lost = map(int, re.search(r"of (\d+) spans (\d+) were overwritten, (\d+) refused, (\d+) not exported", finished.stdout).groups())
        self.assertEqual((lost, of > 30), ([0, 0, of], True))

    def test_receivers_that_are_no_good(self):
        self.assert_exit(self.train(self.folder / "off", env=clean_environment()), 0)
        self.check("dead", f"http://127.0.0.1:{free_port()}", "connect to 127.0.0.1")
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            self.check("hanging", "http://127.0.0.1:%d" % listener.getsockname()[1], "http://127.0.0.1")
        with Sink(http_port=0, grpc_port=0, faults=["reset"]) as sink:
            self.check("resetting", endpoint(sink), "gave up after")

    def test_closed_standard_streams(self):
        """What would be printed lands nowhere, above all not in a file that was opened later."""
        self.assert_exit(self.train(self.folder / "open", env=clean_environment()), 0)
        folder = self.folder / "closed"
        command = [pharos_program.PROGRAM, "train", pharos_program.RECIPE, f"data={self.data}", "--run-dir", folder]
        finished = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *map(str, command)], check=False, timeout=240,
                                  env=enabled(NEMO_LENS_EXPORTER="console"))  # fmt: skip
        self.assertEqual(finished.returncode, 0)
        self.assertEqual(pharos_program.losses(folder), pharos_program.losses(self.folder / "open"))
        self.assertTrue(read_ring(folder)["is_shut_down"])
        self.assertNotIn("scope", (folder / "log.txt").read_text())


if __name__ == "__main__":
    unittest.main()
