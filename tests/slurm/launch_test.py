"""`pharos launch` on a real SLURM of two nodes: in an allocation, as a batch job, arrays, chains, odd node names, layouts."""

import pathlib
import re
import subprocess
import unittest

from slurm_cluster import run_in_namespaces
from slurm_jobs import FIXED_BATCH, NO_EVALUATION, PROGRAM, RECIPE, SlurmTest, losses, run

SHORT = ("train.train_iters=4", *NO_EVALUATION)
DEEPSEEK = ("train.train_iters=4", *NO_EVALUATION, "model.num_layers=2", "model.moe_layer_freq=[0,1]", "dataset.seq_length=32",
            "train.micro_batch_size=2", "train.global_batch_size=4")
LAYOUT = ("model.tensor_model_parallel_size=2", "model.expert_model_parallel_size=2", "model.sequence_parallel=true")


class Launch(SlurmTest):
    FURTHER_NODES = ("rack-09", "rack-10", "rack3n01", "x7")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        finished = run("train", RECIPE, f"data={cls.data}", FIXED_BATCH, *SHORT, "--run-dir", cls.folder / "reference", "--nproc", 2)
        assert finished.returncode == 0, finished.stdout
        cls.reference = losses(cls.folder / "reference")

    def test_in_an_allocation(self):
        finished = self.in_allocation(2, *self.launch_words("allocation", *SHORT))
        self.assert_exit(finished, 0)
        self.assertIn("lm loss", finished.stdout)
        self.assertEqual(losses(self.folder / "allocation"), self.reference)

    def test_batch_job(self):
        job = self.submit("batch", *SHORT)
        self.assert_job(job, "COMPLETED", 0)
        self.assertEqual(losses(self.folder / "batch"), self.reference)

    def test_dry_run_is_accepted_and_queues_nothing(self):
        before = self.cluster.queued()
        finished = self.launch("dry", *SHORT, "--dry-run")
        self.assert_exit(finished, 0)
        script = self.folder / "script.sh"
        script.write_text(finished.stdout)
        self.assertEqual(self.cluster.queued(), before)
        self.assertFalse((self.folder / "dry").exists())
        accepted = self.cluster.command("sbatch", "--test-only", script)
        self.assertEqual(accepted.returncode, 0, accepted.stdout)
        self.assertIn("on nodes n[1-2]", accepted.stdout)

    def test_experts_over_two_nodes_give_the_loss_of_one_rank(self):
        alone = self.folder / "deepseek_alone"
        self.assert_exit(run("train", "deepseek_v2_lite_tiny", *DEEPSEEK, "--run-dir", alone), 0)
        job = self.submit("deepseek", *DEEPSEEK, *LAYOUT, recipe="deepseek_v2_lite_tiny", data=False, ranks_per_node=2)
        self.assert_job(job, "COMPLETED", 0)
        self.assert_close(losses(self.folder / "deepseek"), losses(alone), 2e-6)

    def test_odd_node_names(self):
        for nodes, expected in ((("x7", "rack-10", "rack-09", "rack3n01"), "rack-09"), (("x7", "rack3n01"), "rack3n01")):
            with self.subTest(nodes):
                finished = self.in_allocation(
                    len(nodes), *self.launch_words(f"odd_{len(nodes)}", *SHORT, nodes=len(nodes)), options=("--partition=all", f"--nodelist={','.join(nodes)}"))
                self.assert_exit(finished, 0)


if __name__ == "__main__":
    run_in_namespaces()
    unittest.main(verbosity=2)
