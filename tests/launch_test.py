"""`pharos train RECIPE --nproc N` with the real program: ranks that die, stand still or are refused, signals, restarts."""

import os
import pathlib
import signal
import socket
import struct
import subprocess
import time
import unittest

from pharos_program import PROGRAM, RECIPE, ProgramTest, losses, run

FIXED_BATCH = "train.rampup_batch_size=null"  # the ramp of the recipe does not divide over two ranks
TIMEOUT_S = 120  # a job that hangs fails its test
PHASE_OFFSET, PHASE_BYTES, PID_OFFSET = 136, 32, 40  # of trace/rank_NNNNN.flight, pharos/comm/flight/format.h


def phase_of(folder, rank, pid):
    """What process `pid` last said in its flight record; "" before it has one."""
    try:
        record = pathlib.Path(folder, f"trace/rank_{rank:05d}.flight").read_bytes()[: PHASE_OFFSET + PHASE_BYTES]
        if len(record) < PHASE_OFFSET + PHASE_BYTES or struct.unpack_from("<q", record, PID_OFFSET)[0] != pid:
            return ""
        return record[PHASE_OFFSET:].split(b"\0")[0].decode()
    except FileNotFoundError:
        return ""


def variables_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return dict(part.split("=", 1) for part in text.decode(errors="replace").split("\0") if "=" in part)


def latest(folder):
    path = pathlib.Path(folder, "checkpoints/latest_checkpointed_iteration.txt")
    return int(path.read_text()) if path.exists() else 0


class Job:
    """A launcher that runs; `with` kills what is left of it."""

    def __init__(self, data, folder, *words, num_ranks=2, **options):
        self.folder, self.num_ranks = pathlib.Path(folder), num_ranks
        self.process = subprocess.Popen(
            [PROGRAM, "train", str(RECIPE), f"data={data}", FIXED_BATCH, "--run-dir", str(folder), "--nproc", str(num_ranks), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, **options,
        )
        self.seen = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()  # its ranks die with it
        self.process.communicate()

    def ranks(self):
        """Process number by rank, of the ranks that run now."""
        try:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except FileNotFoundError:
            return {}
        found = {int(variables["RANK"]): int(pid) for pid in children if "RANK" in (variables := variables_of(pid))}
        self.seen |= set(found.values())
        return found

    def wait_until(self, condition):
        """The process numbers by rank at the moment when condition(ranks) holds for a job of all its ranks."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            ranks = self.ranks()
            if len(ranks) == self.num_ranks and condition(ranks):
                return ranks
            time.sleep(0.001)
        raise AssertionError("the moment never came:\n" + self.finish()[1][-3000:])

    def finish(self):
        output, _ = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, output

    def left_over(self):
        return [pid for pid in self.seen if pathlib.Path(f"/proc/{pid}").exists()]


class LaunchTest(ProgramTest):
    """Every step is saved, so that a moment in each phase comes soon and often."""

    LONG = ("train.train_iters=100000", "checkpoint.save_interval=1", "validation.eval_interval=2")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reference = cls.folder / "reference"
        finished = run("train", RECIPE, f"data={cls.data}", FIXED_BATCH, "--run-dir", cls.reference, "--nproc", 2)
        assert finished.returncode == 0, finished.stdout

    def job(self, name, *words, **options):
        return Job(self.data, self.folder / name, *words, **options)

    def check_end(self, job, code, *parts):
        returned, output = job.finish()
        self.assertEqual(returned, code, output[-3000:])
        for part in parts:
            self.assertRegex(output, part)
        self.assertEqual(job.left_over(), [])
        return output


class Runs(LaunchTest):
    def test_console_is_rank_zeros_and_others_have_logs(self):
        self.assertEqual(sorted(losses(self.reference)), list(range(1, 31)))
        self.assertRegex((self.reference / "rank_1.log").read_text(), r"^--- attempt 1, rank 1 of 2, \d{4}-")
        self.assertFalse((self.reference / "rank_0.log").exists())

    def test_one_rank(self):
        with self.job("one", num_ranks=1) as job:
            self.check_end(job, 0)
        alone = self.folder / "alone"
        self.assert_exit(self.train(alone, FIXED_BATCH), 0)
        self.assertEqual(losses(self.folder / "one"), losses(alone))

    def test_default_folder_is_one_for_all_ranks(self):
        finished = run("train", RECIPE, f"data={self.data}", FIXED_BATCH, "train.train_iters=1", "--nproc", 2, cwd=self.folder)
        self.assert_exit(finished, 0)
        folders = list((self.folder / "runs").iterdir())
        self.assertEqual(len(folders), 1)
        self.assertTrue((folders[0] / "rank_1.log").exists())


class Refusals(LaunchTest):
    def refuse(self, folder, *words, env=None, parts=()):
        finished = self.train(folder, FIXED_BATCH, *words, env=os.environ | (env or {}))
        self.assert_exit(finished, 2)
        for part in parts:
            self.assertIn(part, finished.stdout)
        return finished.stdout

    def test_port_in_use(self):
        folder = self.folder / "port"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.refuse(folder, "--nproc", "2", env={"MASTER_PORT": port}, parts=[f"Port {port} ", "MASTER_PORT"])
        self.assertFalse(folder.exists())

    def test_command_line(self):
        folder = self.folder / "never"
        for words, env, part in (
            (("--nproc", "0"), {}, "--nproc"),
            (("--nproc", "two"), {}, "--nproc"),
            (("--max-restarts", "1"), {}, "--nproc"),
            (("--nproc", "2"), {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "--nproc"),
            (("--nproc", "2"), {"MASTER_PORT": "x"}, "MASTER_PORT"),
            (("--nproc", "3"), {}, "global_batch_size"),  # 8 is not divisible by 2 of each of 3 ranks
            (("--nproc", "2", "train.train_iter=1"), {}, "train.train_iters"),
        ):
            with self.subTest(words=words, env=env):
                output = self.refuse(folder, *words, env=env, parts=[part])
                self.assertEqual(output.count("error:"), 1, output)  # once, not once a rank
                self.assertFalse(folder.exists())

    def test_folder_that_holds_a_run(self):
        before = (self.reference / "rank_1.log").read_bytes()
        self.refuse(self.reference, "--nproc", "2", parts=["already holds a run", "rank 0 left with code 2"])
        self.assertEqual((self.reference / "rank_1.log").read_bytes(), before)

    def test_two_jobs_in_one_folder(self):
        with self.job("shared", *self.LONG) as job:
            job.wait_until(lambda _: latest(job.folder) > 0)
            self.refuse(job.folder, "--nproc", "2", "--resume", parts=["Another job is running"])
            self.assertEqual(len(job.ranks()), 2)


class Deaths(LaunchTest):
    def kill_at(self, name, rank, condition, phase):
        with self.job(name, *self.LONG) as job:
            os.kill(job.wait_until(condition)[rank], signal.SIGKILL)
            output = self.check_end(job, 3, rf"launcher: rank {rank} was killed by SIGKILL\.")
        if phase:
            self.assertRegex(output, rf"rank {rank} was in phase \S+, \d+ steps completed")
            if phase != "set-up":  # there, telemetry may not have begun
                self.assertRegex(output, rf"rank {rank} was (in span|between spans)")
        return output

    def resume(self, name):
        """The run goes on to step 30 from its last checkpoint as if nothing had happened."""
        folder = self.folder / name
        step = latest(folder)
        if step >= 30:
            return
        words = ["train.train_iters=30", "scheduler.override_opt_param_scheduler=true", "checkpoint.save_interval=5"]
        with self.job(name, *words, *(["--resume"] if (folder / "run.yaml").exists() else [])) as job:
            self.check_end(job, 0)
        self.assertEqual(sorted(losses(folder)), list(range(1, 31)))

    def test_killed_in_every_phase(self):
        for phase in ("", "set-up", "step", "evaluation", "save"):
            for rank in (0, 1):
                name = f"killed_{phase or 'start'}_{rank}"
                with self.subTest(phase=phase, rank=rank):
                    self.kill_at(name, rank, lambda pids: not phase or phase_of(self.folder / name, rank, pids[rank]) == phase, phase)
                    self.resume(name)

    def test_last_lines_of_another_rank(self):
        output = self.kill_at("lines", 1, lambda _: latest(self.folder / "lines") > 2, "step")
        self.assertIn("0 left with code", output)

    def test_stopped_rank_is_named_and_not_the_one_whose_time_was_up(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                with self.job(f"stopped_{rank}", *self.LONG, "dist.distributed_timeout_seconds_after_init=3") as job:
                    pids = job.wait_until(lambda _: latest(job.folder) > 2)
                    os.kill(pids[rank], signal.SIGSTOP)
                    output = self.check_end(job, 3, rf"launcher: the job hung: rank {rank} held up the others", "gave up first", "who waited for whom")
                    self.assertNotIn(f"rank {1 - rank} held up", output)
                self.assertTrue((job.folder / f"trace/rank_{1 - rank:05d}.hang.json").exists())
                self.assertGreaterEqual(latest(job.folder), 3)

    def test_killed_launcher(self):
        with self.job("launcher", *self.LONG) as job:
            job.wait_until(lambda _: latest(job.folder) > 0)
            job.process.kill()
            job.process.wait()
            deadline = time.monotonic() + TIMEOUT_S
            while time.monotonic() < deadline and any(variables_of(pid) for pid in job.seen):  # a zombie has none
                time.sleep(0.01)
            self.assertFalse([pid for pid in job.seen if variables_of(pid)])


class Signals(LaunchTest):
    def test_saved_and_requeue(self):
        for number, is_group in ((signal.SIGTERM, False), (signal.SIGINT, True)):
            with self.subTest(number.name):
                with self.job(f"signal_{number.name}", "train.train_iters=100000", "checkpoint.save_interval=1000") as job:
                    job.wait_until(lambda _: (job.folder / "metrics.jsonl").exists() and len(losses(job.folder)) > 2)
                    # Ctrl-C goes to the whole group in the foreground; twice would end the ranks unsaved.
                    os.killpg(job.process.pid, number) if is_group else job.process.send_signal(number)
                    self.check_end(job, 4, f"exiting program after receiving {number.name}")
                self.assertEqual(latest(job.folder), max(losses(job.folder)))

    def test_signal_is_not_a_reason_to_restart(self):
        with self.job("no_restart", *self.LONG, "--max-restarts", "3") as job:
            job.wait_until(lambda _: latest(job.folder) > 0)
            job.process.send_signal(signal.SIGTERM)
            self.assertNotIn("attempt", self.check_end(job, 4))


class Restarts(LaunchTest):
    def test_continues_from_the_last_checkpoint(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                with self.job(f"restart_{rank}", "--max-restarts", "3") as job:
                    first = job.wait_until(lambda _: latest(job.folder) >= 5)
                    os.kill(first[rank], signal.SIGKILL)
                    self.check_end(job, 0, rf"attempt 1 ended at step \d+ because rank {rank} was killed by SIGKILL; attempt 2 of at most 4 continues")
                self.assertEqual(losses(job.folder), losses(self.reference))
                self.assertIn("--- attempt 2, rank 1 of 2", (job.folder / "rank_1.log").read_text())

    def test_gives_up_without_progress(self):
        words = ("optimizer.lr=1e30", "optimizer.clip_grad=0", "train.rampup_batch_size=null")
        with self.job("stuck", *words, "--max-restarts", "9") as job:
            output = self.check_end(job, 3, r"no further attempt: two in a row ended at step \d+\.")
        self.assertNotIn("attempt 4", output)

    def test_user_error_is_not_repeated(self):
        with self.job("user_error", "dataset.data_path=nothing/here", "--max-restarts", "9") as job:
            self.assertNotIn("attempt 2", self.check_end(job, 2))


if __name__ == "__main__":
    unittest.main(verbosity=1)
