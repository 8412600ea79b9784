"""Jobs that end before their last step on a real SLURM: cancelled, requeued, out of time, their node lost, at fault."""

import shutil
import unittest

from slurm_cluster import run_in_namespaces, wait_until
from slurm_jobs import FIXED_BATCH, LONG, SlurmTest, latest, losses, num_steps


class Interrupted(SlurmTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # One minute is SLURM's least limit, and it looks at the clock every half: this job runs beside all the others.
        cls.limited = cls().submit("limited", *LONG, "--time", "00:01:00", "--signal-seconds", "40")

    def continue_now(self, job):
        """SLURM lets a requeued job wait for two minutes."""
        self.cluster.wait_job(job, "PENDING", condition=lambda fields: fields["Restarts"] != "0")
        self.cluster.command("scontrol", "update", f"jobid={job}", "starttime=now")

    def test_cancelled(self):
        job = self.submit("cancelled", *LONG)
        self.wait_steps("cancelled", 3, job)
        self.cluster.command("scancel", job)
        output = self.assert_job(job, "CANCELLED", 4)
        self.assertIn("exiting program after receiving SIGTERM", output)
        self.assertEqual(latest(self.folder / "cancelled"), num_steps(self.folder / "cancelled"))

    def test_requeued_by_the_administrator(self):
        job = self.submit("requeued", *LONG)
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


if __name__ == "__main__":
    run_in_namespaces()
    unittest.main(verbosity=2)
