"""`pharos launch` on a real SLURM of two nodes: in an allocation, as a batch job, arrays, chains, odd node names, layouts."""

import json
import os
import pathlib
import re
import unittest

from slurm_cluster import run_in_namespaces
from slurm_jobs import FIXED_BATCH, NO_EVALUATION, PROGRAM, RECIPE, SlurmTest, container_variables, losses, own_port, run

SHORT = ("train.train_iters=4", *NO_EVALUATION)
DEEPSEEK = ("train.train_iters=4", *NO_EVALUATION, "model.num_layers=2", "model.moe_layer_freq=[0,1]", "dataset.seq_length=32",
            "train.micro_batch_size=2", "train.global_batch_size=4")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests/data"
# The published shape, https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite, over that of the fixture.
DEEPSEEK_V2_LITE = {
    "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400,
}
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
        script.write_text(finished.stdout[finished.stdout.index("#!/bin/bash"):])
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
        """Ranks meet at the first node of SLURM's list, which is in its own order; the list is read with and without scontrol."""
        for nodes, compressed, first in (("x7,rack-10,rack-09,rack3n01", "rack-[09-10],rack3n01,x7", "rack-09"), ("x7,rack3n01", "rack3n01,x7", "rack3n01")):
            with self.subTest(nodes):
                name, number = f"odd_{first}", nodes.count(",") + 1
                finished = self.in_allocation(number, *self.launch_words(name, *SHORT, nodes=number), options=("--partition=all", f"--nodelist={nodes}"))
                self.assert_exit(finished, 0)
                start = json.loads((self.folder / name / "attempts.jsonl").read_text().splitlines()[0])
                self.assertEqual(start["num_ranks"], number)
                expanded = self.pharos("launch", "--expand-nodes", compressed)
                self.assertEqual(expanded.stdout.split(), self.cluster.command("scontrol", "show", "hostnames", compressed).stdout.split())
                self.assertEqual(expanded.stdout.split()[0], first)

    def test_what_was_given_wins_over_variables_of_the_shell(self):
        variables = {"SBATCH_TIMELIMIT": "7", "SBATCH_PARTITION": "all", "SBATCH_JOB_NAME": "other", "SBATCH_REQUEUE": "1", "SBATCH_EXPORT": "NONE",
                     "SBATCH_OUTPUT": "other.log", "SBATCH_ERROR": "error.log", "SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "1-2", "SBATCH_COMMENT": "x",
                     "SBATCH_RESERVATION": "nowhere", "SINFO_PARTITION": "short", "SLURM_DISTRIBUTION": "cyclic"}
        words = ("--partition", "main", "--time", "01:00:00", "--job-name", "mine", "--sbatch-arg=--hold")
        refused = self.launch("given", *SHORT, *words, variables=variables)
        self.assert_exit(refused, 2)  # what Pharos says nothing of counts as sbatch reads it
        self.assertIn("reservation", refused.stdout)
        del variables["SBATCH_RESERVATION"]
        job = self.submit("given", *SHORT, *words, variables=variables)
        fields = self.cluster.job(job)
        expected = {"JobId": str(job), "JobName": "mine", "Partition": "main", "TimeLimit": "01:00:00", "Requeue": "0",
                    "StdOut": f"{self.folder}/given/slurm-{job}.log", "StdErr": f"{self.folder}/given/slurm-{job}.log"}
        self.assertEqual({name: fields.get(name) for name in expected}, expected)
        self.assertNotIn("ArrayJobId", fields)
        self.cluster.command("scontrol", "release", job)
        self.assert_job(job, "COMPLETED", 0)
        self.assertEqual(losses(self.folder / "given"), self.reference)

    def test_array(self):
        """Each element is a run of its own; %a in an override is its number."""
        job = self.submit("array", *SHORT, "--array", "4,7", "rng.seed=123%a")
        for element in (4, 7):
            self.assert_job(f"{job}_{element}", "COMPLETED", 0)
        self.assertEqual(losses(self.folder / "array/4"), self.reference)
        self.assertNotEqual(losses(self.folder / "array/7"), self.reference)

    def test_chain(self):
        """Each job continues where the one before left; the last finds nothing to do."""
        words = ("train.train_iters=4", "train.exit_interval=2", *NO_EVALUATION, "--chain", "3")
        finished = self.launch("chain", *words)
        self.assert_exit(finished, 0)
        jobs = [int(number) for number in re.search(r"jobs ([\d, ]+\d)", finished.stdout)[1].split(", ")]
        self.assertIn(f"cancel:         scancel {jobs[2]} {jobs[1]} {jobs[0]}\n", finished.stdout)
        self.assertEqual(len(jobs), 3)
        for job, state, code in zip(jobs, ("FAILED", "COMPLETED", "COMPLETED"), (4, 0, 0)):
            output = self.assert_job(job, state, code)
        self.assertIn("nothing is left to do", output)
        self.assertEqual(losses(self.folder / "chain"), self.reference)

    def test_in_containers(self):
        job = self.submit("container", *SHORT, ranks_per_node=2, variables=container_variables(self.folder))
        output = self.assert_job(job, "COMPLETED", 0)
        self.assertIn("lm loss", output)
        self.assertEqual(sorted(losses(self.folder / "container")), [1, 2, 3, 4])

    def test_reference_command_line(self):
        """Two nodes of eight GPUs, weights, an override, Nsight Systems on rank 0: to the last word of the script."""
        config = json.loads((DATA / "hf/deepseek_v2/config.json").read_text()) | DEEPSEEK_V2_LITE
        weights = self.folder / "DeepSeek-V2-Lite"
        weights.mkdir()
        (weights / "config.json").write_text(json.dumps(config))
        finished = self.pharos("launch", "deepseek_v2_lite_pretrain", "--nodes", 2, "--nsys", "--dry-run", f"hf_path={weights}", "train.train_iters=1000",
                               "profiling.profile_step_start=10", "profiling.profile_step_end=12", "profiling.profile_ranks=[0]")
        self.assert_exit(finished, 0)
        for part in ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8", "--mpi=pmix", "train.train_iters=1000", f"hf_path={weights}",
                     "nsys profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=cudaProfilerApi --capture-range-end=stop --enable efa_metrics -o ",
                     "/profile-$(hostname)-rank$RANK.nsys-rep --force-overwrite=true", "profiling.profile_step_start=10"):
            self.assertIn(part, finished.stdout)
        script = self.folder / "reference.sh"
        script.write_text(finished.stdout[finished.stdout.index("#!/bin/bash"):])
        accepted = self.cluster.command("sbatch", "--test-only", script)
        self.assertEqual(accepted.returncode, 0, accepted.stdout)

    def test_an_empty_name_asks_for_no_image(self):
        folder = self.folder / "images"
        folder.mkdir()
        (folder / "pharos+latest.sqsh").write_text("not read")
        finished = self.cluster.command(PROGRAM, *self.launch_words("none", "--dry-run"), cwd=folder, variables={"SQSH": ""})
        self.assert_exit(finished, 0)
        self.assertIn("note: $SQSH is empty: the tasks run Pharos of the nodes.\n", finished.stdout)
        self.assertNotIn("--container-", finished.stdout)

    def srun_script(self, *words, folder, variables):
        allocation = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", ROOT / "srun.sh"]
        finished = self.cluster.command(*allocation, *words, FIXED_BATCH, *SHORT, cwd=folder, variables=own_port() | {"GPUS_PER_NODE": "1"} | variables)
        self.assert_exit(finished, 0)
        self.assertIn("lm loss", finished.stdout)

    def test_srun_script(self):
        """Nsight Systems goes before the ranks whose window opens, in whatever words they are named."""
        nsys = self.folder / "nsys/nsys"
        nsys.parent.mkdir()
        nsys.write_text('#!/bin/bash\necho "$RANK" >>"${0%/*}/ranks"\nuntil [ "$1" = --force-overwrite=true ]; do shift; done\nshift\nexec "$@"\n')
        nsys.chmod(0o755)
        variables = {"PHAROS": PROGRAM, "PATH": f"{nsys.parent}:{os.environ['PATH']}"}
        self.srun_script("--nsys", RECIPE, f"data={self.data}", "profiling={profile_ranks:[1]}", folder=self.folder, variables=variables)
        self.assertEqual((nsys.parent / "ranks").read_text(), "1\n")

    def test_srun_script_in_containers(self):
        """The container shows a folder above the working folder: relative paths mean the same inside."""
        variables = container_variables(self.folder / "srun_script")
        folder = self.folder / "srun_script/here"
        folder.mkdir()
        mounts = variables["MOUNT"].replace(f"{folder.parent}:{folder.parent}", f"{self.folder}:/fsx")
        self.srun_script(RECIPE, f"data=../../{self.data.name}", folder=folder, variables=variables | {"MOUNT": mounts, "RUN_DIR": "run"})
        self.assertEqual(sorted(losses(folder / "run")), [1, 2, 3, 4])


if __name__ == "__main__":
    run_in_namespaces()
    unittest.main(verbosity=2)
