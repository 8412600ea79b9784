"""TensorBoard's own reader on the event files that lens writes. TENSORBOARD_WRITER names the program that writes one."""

import math
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from tensorboard.backend.event_processing import event_accumulator, event_file_loader

WRITER = os.environ["TENSORBOARD_WRITER"]


class TensorBoardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, *words):
        return subprocess.run([WRITER, self.folder, *words], check=False).returncode

    def load(self):
        accumulator = event_accumulator.EventAccumulator(str(self.folder))
        accumulator.Reload()
        return accumulator

    def points(self, accumulator, tag):
        return [(event.step, event.value) for event in accumulator.Scalars(tag)]

    def check_curves(self, accumulator):
        self.assertEqual(
            set(accumulator.Tags()["scalars"]),
            {
                "lm loss",
                "lm loss vs samples",
                "learning-rate",
                "learning-rate vs samples",
                "iteration-time",
                "lm loss validation",
                "lm loss validation vs samples",
                "lm loss validation ppl",
                "lm loss validation ppl vs samples",
            },
        )
        self.assertEqual(self.points(accumulator, "lm loss")[:2], [(1, 4.0), (2, 2.0)])
        self.assertEqual([step for step, _ in self.points(accumulator, "lm loss vs samples")], [16, 32, 48])
        for (_, rate), expected in zip(self.points(accumulator, "learning-rate"), (1e-4, 2e-4, 3e-4), strict=True):
            self.assertAlmostEqual(rate, expected, places=9)
        self.assertEqual(self.points(accumulator, "lm loss validation"), [(3, 1.5)])
        ((step, perplexity),) = self.points(accumulator, "lm loss validation ppl vs samples")
        self.assertEqual(step, 48)
        self.assertAlmostEqual(perplexity, math.exp(1.5), places=5)

    def test_every_curve_is_read(self):
        self.assertEqual(self.write(), 0)
        accumulator = self.load()
        self.check_curves(accumulator)
        self.assertEqual(accumulator.file_version, 2.0)
        (text,) = accumulator.Tensors("arguments")
        self.assertEqual(text.tensor_proto.string_val[0], b"train_iters: 3")
        self.assertEqual(accumulator.SummaryMetadata("arguments").plugin_data.plugin_name, "text")

    def test_a_killed_process_leaves_what_it_flushed(self):
        self.assertEqual(self.write("kill"), -signal.SIGKILL)
        accumulator = self.load()
        self.check_curves(accumulator)
        self.assertEqual([step for step, _ in self.points(accumulator, "lm loss")], [1, 2, 3])

    def test_a_resumed_run_continues_the_curves(self):
        self.assertEqual(self.write(), 0)
        self.assertEqual(self.write(), 0)
        self.assertEqual(len(list(self.folder.iterdir())), 2)
        self.assertEqual(len(self.points(self.load(), "lm loss")), 6)

    def test_the_checksums_are_looked_at(self):
        """A flipped bit is found, so the tests above have checked the checksums as well."""
        self.assertEqual(self.write(), 0)
        (path,) = self.folder.iterdir()
        content = bytearray(path.read_bytes())
        content[-6] ^= 1
        path.write_bytes(content)
        whole = len(self.points(self.load(), "lm loss validation ppl"))
        self.assertEqual(whole, 1)
        events = list(event_file_loader.EventFileLoader(str(path)).Load())
        self.assertLess(len(events), 1 + 1 + 3 * 5 + 4)


if __name__ == "__main__":
    unittest.main()
