"""The life of a run over its attempts, with the real program: signals at any time, the time limit, runs that are lost, and the
account of them (attempts.jsonl, `pharos goodput`)."""

import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time
import unittest

from free_ports import free_port
from pharos_program import PROGRAM, RECIPE, ProgramTest, losses, run

FIXED_BATCH = "train.rampup_batch_size=null"
TIMEOUT_S = 120
NO_MARGIN = "train.time_limit_margin_seconds=0"


def attempts(folder):
    return json.loads(run("goodput", folder, "--json").stdout)["runs"][0]["attempts"]


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def limit_in(seconds):
    return os.environ | {"PHAROS_TIME_LIMIT_END": str(time.time() + seconds)}


class AttemptsTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reference = cls.folder / "reference"
        finished = run("train", RECIPE, f"data={cls.data}", "--run-dir", cls.reference)
        assert finished.returncode == 0, finished.stdout

    def start(self, folder, *words, **options):
        started = subprocess.Popen(
            [PROGRAM, "train", str(RECIPE), f"data={self.data}", "--run-dir", str(folder), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options,
        )
        self.addCleanup(lambda: (started.kill(), started.wait(), started.stdout.close()))
        return started

    def wait_for(self, condition, started):
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and started.poll() is None:
            if condition():
                return
            time.sleep(0.002)
        raise AssertionError("the moment never came: " + started.communicate()[0][-3000:])

    def check_sums(self, folder):
        report = json.loads(run("goodput", folder, "--json").stdout)
        for part in [*report["runs"][0]["attempts"], report["totals"]]:
            seconds = dict(part["seconds"])
            whole, _ = seconds.pop("wall"), seconds.pop("data_wait")
            self.assertAlmostEqual(sum(seconds.values()), whole, places=6)
        return report["totals"]


class Account(AttemptsTest):
    def test_lost_attempt(self):
        folder = self.folder / "lost"
        started = self.start(folder)
        tracker = folder / "checkpoints/latest_checkpointed_iteration.txt"
        self.wait_for(tracker.exists, started)
        os.kill(started.pid, signal.SIGSTOP)
        running = attempts(folder)
        self.assertEqual([(one["is_open"], one["first_step"]) for one in running], [(True, 0)])
        started.kill()
        started.communicate()
        # The scheduler has started the run under another job: the run stays the same.
        finished = self.train(folder, "--resume", env=os.environ | {"SLURM_JOB_ID": "4711"})
        self.assert_exit(finished, 0)
        self.assertRegex(finished.stdout, r"note: attempt 1 was lost: it ended without a word after step \d+")
        self.assertEqual(losses(folder), losses(self.reference))
        lost, done = attempts(folder)
        self.assertEqual((lost["cause"], lost["exit_code"], done["cause"], done["exit_code"]), ("lost", None, "done", 0))
        self.assertGreaterEqual(lost["last_step"], done["first_step"])
        self.assertEqual(lost["useful_steps"] + done["useful_steps"], 30)
        self.assertEqual((done["job_id"], done["last_step"], done["num_ranks"]), ("4711", 30, 1))
        self.assertEqual(done["hosts"], [socket.gethostname()])
        run_ids = {line["run_id"] for line in map(json.loads, (folder / "attempts.jsonl").read_text().splitlines()) if "run_id" in line}
        self.assertEqual(len(run_ids), 1)
        totals = self.check_sums(folder)
        self.assertEqual(totals["useful_steps"], 30)
        self.assertGreater(totals["goodput"], 0)
        self.assertGreater(totals["seconds"]["waiting"], 0)

    def test_table(self):
        finished = run("goodput", self.reference, self.reference)
        self.assert_exit(finished, 0)
        for part in ("1 attempt", "30 of 30 steps useful", "done (code 0)", "useful steps", "waiting between attempts", "goodput", "all 2 runs · 60 of 60"):
            self.assertIn(part, finished.stdout)

    def test_without_an_account(self):
        finished = run("goodput", self.folder)
        self.assert_exit(finished, 2)
        self.assertIn("There is no account of attempts", finished.stdout)

    def test_failures(self):
        """A user error, then a checkpoint that cannot be written when the run is to stop: never code 4."""
        folder = self.folder / "failing"
        self.assert_exit(self.train(folder, "train.exit_interval=2"), 4)
        finished = run("train", RECIPE, "data=" + str(self.folder / "nowhere"), "--run-dir", folder, "--resume")
        self.assert_exit(finished, 2)
        small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))  # as a disk that fills up
        finished = self.train(folder, "--resume", "train.exit_interval=3", preexec_fn=small)
        self.assert_exit(finished, 3)
        found = attempts(folder)
        self.assertEqual([(one["cause"], one["exit_code"]) for one in found], [("exit interval", 4), ("user error", 2), ("training failure", 3)])
        self.assertIn("could not be saved", found[2]["message"])
        self.assertEqual([one["useful_steps"] for one in found], [2, 0, 0])
        self.check_sums(folder)

    def test_a_run_begins_again_from_what_it_loaded(self):
        """Stopped before its first checkpoint, it must not go on from random weights."""
        folder = self.folder / "loaded"
        load = f"checkpoint.load={self.reference / 'checkpoints'}"
        words = (load, "train.train_iters=32", "scheduler.override_opt_param_scheduler=true")
        self.assert_exit(self.train(folder, *words, env=limit_in(-1)), 4)
        finished = self.train(folder, *words, "--resume")
        self.assert_exit(finished, 0)
        self.assertIn("begins again from checkpoint.load", finished.stdout)
        self.assertEqual(sorted(losses(folder)), [31, 32])


class Signals(AttemptsTest):
    def check_flood(self, folder, started, pids):
        """SIGTERM after SIGTERM, with scancel's SIGCONT, until the end: what was computed is saved."""
        while started.poll() is None:
            for pid in pids:
                for number in (signal.SIGCONT, signal.SIGTERM):
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        pass
            time.sleep(0.001)
        output = started.communicate()[0]
        self.assertEqual(started.returncode, 4, output[-3000:])
        self.assertIn("exiting program after receiving SIGTERM.", output)
        tracker = folder / "checkpoints/latest_checkpointed_iteration.txt"
        self.assertEqual(int(tracker.read_text()), max(losses(folder)))
        last = attempts(folder)[-1]
        self.assertEqual((last["cause"], last["exit_code"], last["useful_steps"]), ("signal SIGTERM", 4, last["steps"]))

    def test_repeated_while_saving(self):
        folder = self.folder / "flood"
        started = self.start(folder, "train.train_iters=100000", "checkpoint.save_interval=100000")
        self.wait_for(lambda: (folder / "metrics.jsonl").exists() and len(losses(folder)) > 2, started)
        self.check_flood(folder, started, [started.pid])

    def test_repeated_while_saving_on_two_ranks(self):
        folder = self.folder / "flood_2"
        started = self.start(folder, FIXED_BATCH, "train.train_iters=100000", "checkpoint.save_interval=100000", "--nproc", "2")
        self.wait_for(lambda: (folder / "metrics.jsonl").exists() and len(losses(folder)) > 2, started)
        children = pathlib.Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        self.check_flood(folder, started, [*map(int, children)])

    def test_during_set_up(self):
        """As soon as it can be caught: the run leaves for a requeue, and goes on as if nothing had been."""
        folder = self.folder / "early"
        started = self.start(folder)
        self.wait_for(lambda: catches(started.pid, signal.SIGTERM), started)
        started.send_signal(signal.SIGTERM)
        output = started.communicate(timeout=TIMEOUT_S)[0]
        self.assertEqual(started.returncode, 4, output)
        self.assertIn("exiting program after receiving SIGTERM.", output)
        self.assert_exit(self.train(folder, "--resume"), 0)
        self.assertEqual(losses(folder), losses(self.reference))
        self.assertEqual([one["exit_code"] for one in attempts(folder)], [4, 0])

    def test_before_the_ranks_have_met(self):
        """Each rank waits for one that never comes."""
        port = str(free_port())
        for rank in ("0", "1"):
            with self.subTest(rank=rank):
                variables = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                folder = self.folder / "unmet"
                started = self.start(folder, FIXED_BATCH, env=os.environ | variables)
                self.wait_for(lambda: catches(started.pid, signal.SIGTERM), started)
                started.send_signal(signal.SIGTERM)
                output = started.communicate(timeout=TIMEOUT_S)[0]
                self.assertEqual(started.returncode, 4, output)
                self.assertFalse(folder.exists())


class TimeLimit(AttemptsTest):
    def test_already_over(self):
        """Nothing is begun, on one rank and on two, and nothing is lost."""
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                folder = self.folder / f"over_{ranks}"
                words = (FIXED_BATCH, "train.train_iters=3", "--nproc", str(ranks))
                finished = self.train(folder, *words, env=limit_in(-5))
                self.assert_exit(finished, 4)
                self.assertIn("exiting program before the time limit", finished.stdout)
                self.assertFalse((folder / "checkpoints").exists())
                self.assert_exit(self.train(folder, *words, "--resume"), 0)
                self.assertEqual(sorted(losses(folder)), [1, 2, 3])
                self.assertEqual([one["cause"] for one in attempts(folder)], ["time limit", "done"])

    def stop_by_limit(self, folder, *words):
        """A run that its time limit stops after some steps."""
        seconds = 2
        while not (folder / "checkpoints").exists():  # a busy machine may need all of it to start
            resumed = ["--resume"] if (folder / "run.yaml").exists() else []
            finished = self.train(folder, *words, NO_MARGIN, "train.train_iters=100000", "checkpoint.save_interval=100000", *resumed, env=limit_in(seconds))
            self.assert_exit(finished, 4)
            self.assertRegex(finished.stdout, r"exiting program before the time limit: -?[\d.]+ s are left")
            seconds *= 2
        last = attempts(folder)[-1]
        self.assertEqual((last["cause"], last["exit_code"]), ("time limit", 4))
        self.assertEqual(last["last_saved_step"], max(losses(folder)))
        return last["last_step"]

    def test_saves_in_time_and_goes_on(self):
        folder, straight = self.folder / "limited", self.folder / "straight"
        step = self.stop_by_limit(folder)
        words = ("train.train_iters=100000", "checkpoint.save_interval=100000", f"train.exit_interval={step + 3}")
        self.assert_exit(self.train(folder, "--resume", *words), 4)
        self.assert_exit(self.train(straight, *words), 4)
        self.assertEqual(losses(folder), losses(straight))

    def test_on_two_ranks(self):
        self.assertGreater(self.stop_by_limit(self.folder / "limited_2", FIXED_BATCH, "--nproc", "2"), 0)

    def test_evaluations_that_would_not_end_are_left_out(self):
        folder = self.folder / "left_out"
        words = (FIXED_BATCH, NO_MARGIN, "train.train_iters=4", "validation.eval_interval=2", "validation.eval_iters=150000")
        finished = self.train(folder, *words, env=limit_in(50))
        self.assert_exit(finished, 0)
        for place in ("iteration 2", "iteration 4", "iteration 4 on validation set", "iteration 4 on test set"):
            self.assertRegex(finished.stdout, rf"evaluation at {place} left out: needs about \d+\.\d s, \d+\.\d s are left")
        self.assertEqual((folder / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip(), "4")

    def test_a_time_that_is_none(self):
        finished = self.train(self.folder / "wrong", env=os.environ | {"PHAROS_TIME_LIMIT_END": "tomorrow"})
        self.assert_exit(finished, 2)
        self.assertIn("PHAROS_TIME_LIMIT_END = tomorrow is not a time", finished.stdout)


if __name__ == "__main__":
    unittest.main()
