"""Jobs that end before their last step on a real SLURM: cancelled, requeued, out of time, their node lost, at fault."""

import concurrent.futures
import json
import re
import shutil
import unittest

from slurm_cluster import run_in_namespaces, wait_until
from slurm_jobs import FIXED_BATCH, LONG, SlurmTest, latest, losses, num_steps


class Interrupted(SlurmTest):
    FURTHER_NODES = ("t1", "t2")  # whose job the loss of n2 does not touch

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # One minute is SLURM's least limit, and it looks at the clock every half: this job runs beside all the others.
        cls.limited = cls().submit("limited", *LONG, "--time", "00:01:00", "--signal", "TERM@40", "--partition", "all", "--sbatch-arg=--nodelist=t1,t2")

    def ends(self, name):
        """What attempts.jsonl says about the ends of the starts of a run."""
        lines = [json.loads(line) for line in (self.folder / name / "attempts.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == "end"]

    def continue_now(self, job, restarts="1"):
        """SLURM lets a requeued job wait for two minutes. Within seconds of the requeue its nodes would refuse it: they have just
        revoked its credential."""
        self.cluster.wait_job(job, "PENDING", condition=lambda fields: fields["Restarts"] == restarts)
        self.cluster.wait_gone(job)
        self.cluster.command("scontrol", "update", f"jobid={job}", "starttime=now+3")

    def test_cancelled(self):
        job = self.submit("cancelled", *LONG)
        self.wait_steps("cancelled", 3, job)
        self.cluster.command("scancel", job)
        output = self.assert_job(job, "CANCELLED", 4)
        self.assertIn("exiting program after receiving SIGTERM", output)
        self.assertEqual(latest(self.folder / "cancelled"), num_steps(self.folder / "cancelled"))

    def test_requeued_by_the_administrator(self):
        job = self.submit("requeued", *LONG, "--requeue")
        self.wait_steps("requeued", 3, job)
        self.cluster.command("scontrol", "requeue", job)
        self.continue_now(job)
        saved = latest(self.folder / "requeued")
        self.assertGreaterEqual(saved, 3)
        self.wait_steps("requeued", saved + 3, job)
        self.cluster.command("scancel", job)
        self.assert_job(job, "CANCELLED", 4, restarts=1)
        found = losses(self.folder / "requeued")
        self.assertEqual(found, self.uninterrupted("requeued_reference", max(found)))

    def test_requeues_itself_until_the_last_step(self):
        """Code 4 brings the job back, 0 ends it; the losses are those of a run that nobody stopped."""
        words = ("train.train_iters=12", "validation.eval_interval=100")
        job = self.submit("itself", *words, "train.exit_interval=5", "--requeue")
        for restarts in ("1", "2"):
            self.continue_now(job, restarts)
        output = self.assert_job(job, "COMPLETED", 0, restarts=2)
        self.assertEqual(output.count("goes back into the queue"), 2)
        reference = self.folder / "itself_reference"
        self.assert_exit(self.train(reference, FIXED_BATCH, *words, "--nproc", 2), 0)
        self.assertEqual(losses(self.folder / "itself"), losses(reference))
        self.assertEqual([end["exit_code"] for end in self.ends("itself")], [4, 4, 0])

    def test_user_error_is_not_requeued(self):
        data = self.folder / "lost"
        for suffix in (".bin", ".idx"):
            shutil.copy(f"{self.data}{suffix}", f"{data}{suffix}")
        job = self.submit("user_error", f"data={data}", "--requeue", "--sbatch-arg=--hold")
        (self.folder / "lost.bin").unlink()
        self.cluster.command("scontrol", "release", job)
        output = self.assert_job(job, "FAILED", 2)
        self.assertIn("lost.bin", output)

    def test_node_set_down(self):
        """SLURM takes the job from all nodes and back into the queue; the node that is left saves."""
        job = self.submit("down", *LONG, "--requeue")
        self.wait_steps("down", 3, job)
        self.cluster.command("scontrol", "update", "nodename=n2", "state=down", "reason=power")
        self.continue_now(job)
        saved = latest(self.folder / "down")
        self.assertGreaterEqual(saved, 3)
        output = self.cluster.output(job)
        self.assertIn("Node failure on n2", output)
        self.wait_steps("down", saved + 3, job)
        self.cluster.command("scancel", job)
        self.assert_job(job, "CANCELLED", 4, restarts=1)

    def test_only_node_set_down(self):
        """srun leaves with 0 then, and sbatch --wait too."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.launch, "only", *LONG, "--wait", "--sbatch-arg=--nodelist=n1", nodes=1)
            wait_until(lambda: num_steps(self.folder / "only") >= 3, "step 3 of only", details=self.cluster.logs)
            self.cluster.command("scontrol", "update", "nodename=n1", "state=down", "reason=power")
            self.assert_exit(waiting.result(), 4)
        self.cluster.command("scontrol", "update", "nodename=n1", "state=resume")
        self.cluster.wait_idle("n1")
        job = re.search(r"Submitted job (\d+)", waiting.result().stdout)[1]
        self.assertIn("Node failure on n1", self.cluster.output(job))
        end = self.folder / "only/launch.end"
        wait_until(end.exists, "launch.end", details=self.cluster.logs)
        self.assertEqual(end.read_text(), f"4 {job} 0 0\n")

    def test_node_lost(self):
        """Its slurmd and all that ran there are gone: the other rank says what broke, and the run goes on from its last save."""
        job = self.submit("lost", *LONG, "checkpoint.save_interval=5", "--requeue")
        self.wait_steps("lost", 6, job)
        self.cluster.kill_node("n2")
        self.cluster.command("scontrol", "update", "nodename=n2", "state=down", "reason=power")
        self.cluster.wait_job(job, "PENDING", condition=lambda fields: fields["Restarts"] == "1")
        saved = latest(self.folder / "lost")
        self.assertGreaterEqual(saved, 5)
        self.cluster.start_node("n2")
        self.cluster.wait_idle("n2")
        self.continue_now(job)
        self.wait_steps("lost", saved + 6, job)
        self.cluster.command("scancel", job)
        output = self.assert_job(job, "CANCELLED", 4, restarts=1)
        self.assertIn("Node failure on n2", output)
        self.assertIn(f"slurm-{job}.log: srun: error: Node failure on n2", self.pharos("goodput", self.folder / "lost").stdout)
        found = losses(self.folder / "lost")
        self.assertEqual(found, self.uninterrupted("lost_reference", max(found)))

    def test_rank_killed(self):
        """A crash is worth another try, however the other ranks left because of it."""
        job = self.submit("killed", *LONG, "checkpoint.save_interval=5", "--requeue")
        self.wait_steps("killed", 6, job)
        self.cluster.kill_rank(job, 1)
        self.continue_now(job)
        output = self.cluster.output(job)
        self.assertRegex(output, r"task 1: Killed")
        self.assertIn("the connection to a peer broke", output)
        self.assertIn("goes back into the queue", output)
        self.wait_steps("killed", latest(self.folder / "killed") + 6, job)
        self.cluster.command("scancel", job)
        self.assert_job(job, "CANCELLED", 4, restarts=1)

    def test_time_limit(self):
        fields = self.cluster.wait_job(self.limited, "FAILED", "TIMEOUT", "COMPLETED")
        self.assertEqual(fields["ExitCode"], "4:0", self.cluster.output(self.limited))
        self.assertEqual(latest(self.folder / "limited"), num_steps(self.folder / "limited"))
        self.assertEqual([end["exit_code"] for end in self.ends("limited")], [4])


if __name__ == "__main__":
    run_in_namespaces()
    unittest.main(verbosity=2)
