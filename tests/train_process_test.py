"""`pharos train` as a process: what it leaves behind, how it ends, and that killing it loses nothing."""

import os
import pathlib
import pty
import random
import re
import resource
import select
import signal
import subprocess
import time
import unittest

from pharos_program import PROGRAM, RECIPE, ProgramTest, losses, metrics, run

LOG_LINE = re.compile(
    r"^ \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration +\d+/ +30 \| consumed samples: +\d+ \|"
    r" elapsed time per iteration \(ms\): \d+\.\d \| learning rate: \d\.\d{6}E[-+]\d\d \| global batch size: +\d+ \|"
    r" lm loss: \d\.\d{6}E[-+]\d\d \| loss scale: 1\.0 \| grad norm: \d+\.\d{3} \| number of skipped iterations: +0 \|"
    r" number of nan iterations: +0 \|$",
    re.MULTILINE,
)


def losses_so_far(folder):
    """Steps in metrics.jsonl while it is being written."""
    path = pathlib.Path(folder, "metrics.jsonl")
    text = path.read_text() if path.exists() else ""
    return [int(found) for found in re.findall(r'"loss":.*"step":(\d+)', text)]


class WholeRun(ProgramTest):
    """One uninterrupted run, looked at from all sides, and the reference for the interrupted ones."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reference = cls.folder / "reference"
        cls.finished = cls.train(cls, cls.reference)
        assert cls.finished.returncode == 0, cls.finished.stdout

    def weights(self, run_folder, iteration=30):
        return pathlib.Path(run_folder, f"checkpoints/iter_{iteration:07d}/rank_00000.safetensors").read_bytes()

    def test_folder_has_its_parts(self):
        for name in ("run.yaml", "log.txt", "metrics.jsonl", "checkpoints/latest_checkpointed_iteration.txt"):
            self.assertTrue((self.reference / name).is_file(), name)
        self.assertEqual((self.reference / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip(), "30")
        kept = sorted(path.name for path in (self.reference / "checkpoints").glob("iter_*"))
        self.assertEqual(kept, ["iter_0000025", "iter_0000030"])

    def test_log_lines_are_megatrons(self):
        log = (self.reference / "log.txt").read_text()
        iterations = [int(text) for text in re.findall(r"iteration +(\d+)/", log)]
        self.assertEqual(iterations, [1, 5, 10, 15, 20, 25, 30])
        self.assertEqual(len(LOG_LINE.findall(log)), 7, log)
        self.assertRegex(log, r"\n-+\n validation loss at iteration 10 \| lm loss value: \d\.\d{6}E\+00 \| lm loss PPL: .* \| \n-+\n")
        self.assertIn("validation loss at iteration 30 on test set", log)

    def test_loss_falls_and_every_step_is_recorded(self):
        by_step = losses(self.reference)
        self.assertEqual(sorted(by_step), list(range(1, 31)))
        self.assertLess(by_step[30], by_step[1] - 1)
        for line in metrics(self.reference):
            if "loss" in line:
                self.assertGreater(line["step_time_ms"], 0)
                self.assertLessEqual(line["forward_backward_ms"] + line["optimizer_ms"], line["step_time_ms"] * 1.001 + 0.01)

    def test_batch_ramps_up(self):
        batches = [line["global_batch_size"] for line in metrics(self.reference) if "loss" in line]
        self.assertEqual(batches[0], 4)
        self.assertEqual(batches[-1], 8)
        self.assertEqual(sorted(set(batches)), [4, 6, 8])
        self.assertEqual(batches, sorted(batches))

    def test_waterfall_adds_up(self):
        phases = next(line["startup_ms"] for line in metrics(self.reference) if "startup_ms" in line)
        self.assertEqual(set(phases), {"libraries", "config", "initialize", "kernels", "data", "model", "first step"})
        log = (self.reference / "log.txt").read_text()
        shown = [float(text) for text in re.findall(r" ([\d.]+) ms ", log.split(" iteration ")[0])]
        self.assertAlmostEqual(sum(shown[:-1]), shown[-1], places=3)
        self.assertAlmostEqual(sum(phases.values()), shown[-1], delta=0.5)

    def test_run_yaml_repeats_the_run(self):
        again = self.folder / "again"
        self.assert_exit(run("train", self.reference / "run.yaml", "--run-dir", again), 0)
        self.assertEqual(losses(again), losses(self.reference))
        self.assertEqual(self.weights(again), self.weights(self.reference))

    def wait_for_a_bad_moment(self, folder, source, started):
        """Until some steps later and a little more, or, every third time, just some time (set-up included)."""
        if (folder / "run.yaml").exists() and source.random() < 1 / 3:
            started.wait(timeout=source.uniform(0.05, 0.5))
            return
        goal = max(losses_so_far(folder), default=0) + source.randint(1, 8)
        while started.poll() is None and max(losses_so_far(folder), default=0) < goal:
            time.sleep(0.002)
        started.wait(timeout=source.uniform(0.0005, 0.03))

    def test_killed_at_random_moments_and_resumed(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                source = random.Random(seed)
                folder = self.folder / f"killed{seed}"
                kills = 0
                arguments = [PROGRAM, "train", str(RECIPE), f"data={self.data}", "--run-dir", str(folder)]
                while True:
                    started = subprocess.Popen(
                        arguments + (["--resume"] if (folder / "run.yaml").exists() else []),
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    )
                    try:
                        self.wait_for_a_bad_moment(folder, source, started) if kills < 8 else started.wait(timeout=120)
                    except subprocess.TimeoutExpired:
                        started.send_signal(signal.SIGKILL)
                        kills += 1
                    output = started.communicate()[0]
                    if started.returncode != -signal.SIGKILL:
                        self.assertEqual(started.returncode, 0, output[-3000:])
                        break
                self.assertGreater(kills, 0)
                self.assertEqual(losses(folder), losses(self.reference))
                self.assertEqual(self.weights(folder), self.weights(self.reference))
                self.assertEqual([path.name for path in (folder / "checkpoints").iterdir() if ".tmp" in path.name], [])

    def test_generation_from_the_run(self):
        finished = run("generate", self.reference, "--prompt", "ab", "--max-tokens", "20", "--seed", "3")
        self.assert_exit(finished, 0)
        self.assertEqual(finished.stdout, run("generate", self.reference, "--prompt", "ab", "--max-tokens", "20", "--seed", "3").stdout)


class Endings(ProgramTest):
    def test_signal_saves_and_says_requeue(self):
        folder = self.folder / "signalled"
        started = subprocess.Popen(
            [PROGRAM, "train", str(RECIPE), f"data={self.data}", "--run-dir", str(folder), "train.train_iters=100000"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (folder / "checkpoints/latest_checkpointed_iteration.txt").exists():
            time.sleep(0.05)
        started.send_signal(signal.SIGTERM)
        output = started.communicate(timeout=60)[0]
        self.assertEqual(started.returncode, 4, output)
        self.assertIn("exiting program after receiving SIGTERM.", output)
        last = max(losses(folder))
        self.assertEqual((folder / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip(), str(last))

    def test_telemetry_overrides_decide_over_variables(self):
        """Flag > override on the command line > variable > recipe."""
        environment = os.environ | {"MEGATRON_OTEL_ENABLED": "1", "MEGATRON_OTEL_EXPORTER": "console"}
        steps = "train.train_iters=2"
        for name, arguments, has_lines, has_file in (
            ("variable", (), True, False),
            ("override", ("telemetry.exporter=file",), False, True),
            ("off", ("telemetry.enabled=false",), False, False),
            ("flag", ("telemetry.enabled=false", "--otel-enabled"), True, False),
        ):
            with self.subTest(name):
                folder = self.folder / f"telemetry_{name}"
                finished = self.train(folder, steps, *arguments, env=environment)
                self.assert_exit(finished, 0)
                self.assertEqual('{"name":"megatron.startup"' in finished.stdout, has_lines)
                self.assertEqual((folder / "trace/spans.jsonl").exists(), has_file)

    def test_exit_interval(self):
        folder = self.folder / "interval"
        self.assert_exit(self.train(folder, "train.exit_interval=7"), 4)
        self.assertEqual(max(losses(folder)), 7)
        self.assertEqual((folder / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip(), "7")
        self.assert_exit(self.train(folder, "--resume"), 0)
        self.assertEqual(sorted(losses(folder)), list(range(1, 31)))

    def test_without_saving_an_early_end_is_a_failure(self):
        folder = self.folder / "unsaved"
        finished = self.train(folder, "train.exit_interval=3", "checkpoint.save_interval=0")
        self.assert_exit(finished, 3)
        self.assertIn("without a checkpoint", finished.stdout)

    def test_non_finite_loss_stops_with_the_checkpoint_intact(self):
        folder = self.folder / "nan"
        self.assert_exit(self.train(folder, "train.train_iters=5"), 0)
        finished = self.train(
            folder, "--resume", "train.train_iters=30", "optimizer.lr=1e30", "optimizer.clip_grad=0",
            "scheduler.override_opt_param_scheduler=true", "checkpoint.save_interval=100",
        )
        self.assert_exit(finished, 3)
        self.assertRegex(finished.stdout, r"The (loss is|gradient of .* is not finite).*\(iteration \d+, .*; the checkpoint of step 5 is intact")
        self.assertEqual((folder / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip(), "5")

    def test_non_finite_steps_are_skipped_when_asked_to_go_on(self):
        folder = self.folder / "skipping"
        finished = self.train(
            folder, "mixed_precision=fp16_mixed", "optimizer.lr=1e4", "optimizer.clip_grad=0",
            "train.train_iters=45", "logger.log_interval=1",
        )
        self.assert_exit(finished, 0)
        self.assertRegex(finished.stdout, r"lm loss: NAN \|.* number of skipped iterations: +1 \| number of nan iterations: +1 \|")
        self.assertTrue(any(line.get("skipped") and line["loss"] is None for line in metrics(folder)))

    def test_requested_iterations_are_skipped(self):
        folder = self.folder / "requested"
        self.assert_exit(self.train(folder, "train.iterations_to_skip=[3,4]"), 0)
        self.assertEqual(sorted(losses(folder)), [1, 2, *range(5, 31)])
        self.assertIn("skipped samples:", (folder / "log.txt").read_text())

    def test_full_disk_while_saving(self):
        folder = self.folder / "full"
        self.assert_exit(self.train(folder, "train.train_iters=5"), 0)
        before = (folder / "checkpoints/iter_0000005/rank_00000.safetensors").read_bytes()

        def limit_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))

        finished = self.train(folder, "--resume", "train.train_iters=30", "scheduler.override_opt_param_scheduler=true", preexec_fn=limit_files)
        self.assertIn(finished.returncode, (2, 3), finished.stdout[-2000:])
        self.assertIn("rank_00000.safetensors", finished.stdout)
        self.assertEqual((folder / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip(), "5")
        self.assertEqual(sorted(path.name for path in (folder / "checkpoints").iterdir()), ["iter_0000005", "latest_checkpointed_iteration.txt"])
        self.assertEqual((folder / "checkpoints/iter_0000005/rank_00000.safetensors").read_bytes(), before)

    def test_precisions_train(self):
        # The first steps in fp16 overflow until the scale, 2^32 at the start, has come down.
        for name, steps in (("bf16_mixed", 12), ("fp16_mixed", 50)):
            with self.subTest(name):
                folder = self.folder / name
                self.assert_exit(self.train(folder, f"mixed_precision={name}", f"train.train_iters={steps}"), 0)
                found = losses(folder)
                self.assertLess(found[steps], found[1] - 0.3)
                skipped = sum(line.get("skipped", False) for line in metrics(folder))
                self.assertTrue(10 < skipped < 40 if name == "fp16_mixed" else skipped == 0, skipped)

    def test_progress_on_a_terminal(self):
        folder = self.folder / "terminal"
        ours, theirs = pty.openpty()
        started = subprocess.Popen(
            [PROGRAM, "train", str(RECIPE), f"data={self.data}", "--run-dir", str(folder)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        while True:
            ready, _, _ = select.select([ours], [], [], 60)
            try:
                part = os.read(ours, 65536) if ready else b""
            except OSError:
                part = b""
            if not part:
                break
            shown += part
        self.assertEqual(started.wait(timeout=60), 0, shown[-2000:])
        self.assertIn(b"ETA", shown)
        self.assertIn(b"step 30/30", shown)
        self.assertNotIn(b"consumed samples", shown)
        self.assertIn("consumed samples", (folder / "log.txt").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=1)
