"""What `pharos launch` finds before the queue does, on a real SLURM: the message, exit code 2, and that no job was queued."""

import os
import re
import socket
import unittest

from slurm_cluster import run_in_namespaces
from slurm_jobs import NO_EVALUATION, SlurmTest, container_variables


class Refusals(SlurmTest):
    UNNAMED_NODES = ("ghost1", "ghost2")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.container = container_variables(cls.folder)
        (cls.folder / "weights").mkdir()

    def refuse(self, *words, parts, variables=None, name="never", **options):
        before = self.cluster.queued()
        finished = self.launch(name, *words, variables=variables, **options)
        self.assert_exit(finished, 2)
        for part in parts:
            self.assertIn(part, finished.stdout)
        self.assertEqual(len(re.findall("^error:", finished.stdout, re.MULTILINE)), 1, finished.stdout)
        self.assertIn("fix:", finished.stdout)
        self.assertEqual(self.cluster.queued(), before)
        self.assertFalse((self.folder / name).exists())

    def test_before_the_queue(self):
        weights = f"{self.folder}/weights"
        mounted = self.container["MOUNT"].replace(f"{self.folder}:{self.folder}", f"{self.folder}/tiny:{self.folder}/tiny")
        for name, words, variables, parts in (
            ("image missing", (), {"SQSH": "missing.sqsh"}, ("There is no image", "missing.sqsh", "pharos image build", "SQSH")),
            ("image is none", (), {"SQSH": str(self.data) + ".bin"}, ("is not a squashfs file", "pharos image build")),
            ("mount source missing", (), {"MOUNT": self.container["MOUNT"] + ",/nowhere:/data"}, ("/nowhere", "does not exist", "MOUNT")),
            ("weights hidden", (f"model.hf_path={weights}",), {"MOUNT": mounted}, ("model.hf_path", "not visible inside the container", f"{weights}:{weights}")),
            ("run folder hidden", (), {"MOUNT": mounted}, ("run folder", "not visible inside the container", "MOUNT")),
            ("run folder read-only", (), {"MOUNT": self.container["MOUNT"].replace(f"{self.folder}:{self.folder}", f"{self.folder}:{self.folder}:ro")}, ("cannot be written inside the container", ":ro is for reading only")),
            ("no pyxis", (), {"PATH": os.environ["PATH"]}, ("--container-image", "pyxis", "--no-container")),
            ("number of ranks is none", ("--no-container",), {"GPUS_PER_NODE": "eight"}, ("GPUS_PER_NODE", "eight")),
            ("more GPUs than there are", ("--no-container", "dist.device=cuda", "train.global_batch_size=48"), {"GPUS_PER_NODE": "12"}, ("12 GPUs", "at most 8", "GPUS_PER_NODE")),
            ("more ranks than CPUs", ("--no-container", "train.global_batch_size=128"), {"GPUS_PER_NODE": "32"}, ("32 CPUs", "at most 16", "GPUS_PER_NODE")),
            ("more nodes than there are", ("--no-container", "--nodes", "3"), {}, ("3 nodes", "has 2", "--nodes")),
            ("no such partition", ("--no-container", "--partition", "gpu"), {}, ("'gpu'", "all, main, short")),
            ("override unknown", ("--no-container", "train.train_iter=1"), {}, ("train.train_iter", "train.train_iters")),
            ("port is none", ("--no-container",), {"MASTER_PORT": "x"}, ("MASTER_PORT",)),
            ("time malformed", ("--no-container", "--time", "1h", "--signal", "TERM@2m"), {}, ("'1h' is no time limit", "'TERM@2m'")),
            ("time of the partition", ("--no-container", "--partition", "short", "--time", "31"), {}, ("more than partition short allows: 30 minutes", "--time 30")),
            ("limits of the environment", ("--no-container",), {"SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "31"}, ("more than partition short allows: 30 minutes", "SBATCH_TIMELIMIT")),
            ("log elsewhere", ("--no-container", "--sbatch-arg=--output=x"), {}, ("would take --output of the job from Pharos", "slurm-JOB.log")),
            ("time not above the signal", ("--no-container", "--time", "2"), {}, ("--time 2 is 120 s", "TERM@30")),
            ("nothing is saved", ("--no-container", "--requeue", "checkpoint.save_interval=0"), {}, ("--requeue is given", "checkpoint.save_interval=N")),
            ("no rank saves on the signal", ("--no-container", "--signal", "USR1@120"), {}, ("do not save on the signal of --signal USR1@120", "train.exit_signal=SIGUSR1")),
            ("limits lose steps", ("--no-container", "--requeue", "train.exit_signal_handler=false"), {}, ("do not save on the signal", "--signal INT@120")),
            ("variable of the launcher", ("--no-container", "++env_vars.RANK=2"), {}, ("env_vars.RANK = 2 cannot be set",)),
            ("no rank to profile", ("--no-container", "--nsys", "profiling.profile_ranks=[99]"), {}, ("names none of the 2 ranks",)),
            ("array and requeues are none", ("--no-container", "--array", "4-1", "--max-requeues", "2"), {}, ("'4-1' ends before it begins", "--max-requeues is given without --requeue")),
            ("port is octal", ("--no-container",), {"MASTER_PORT": "029500"}, ("MASTER_PORT=29500",)),
            ("chain without saves", ("--no-container", "--chain", "2", "checkpoint.save_interval=0"), {}, ("--chain is given", "checkpoint.save_interval=N")),
            ("weights missing", ("--no-container", "model.hf_path=/no/such"), {}, ("error: model.hf_path = /no/such does not exist", "where: command line")),
            ("sbatch refuses", ("--no-container", "--sbatch-arg=--begin=never"), {}, ("sbatch did not take the job", "fix:")),
            ("no such --mpi", ("--no-container", "--mpi", "pmi9"), {}, ("--mpi=pmi9", "--mpi none")),
        ):
            with self.subTest(name):
                nodes = [] if "--nodes" in words else ["--nodes", "2"]
                self.refuse(*words, *nodes, variables=self.container | variables, parts=parts, nodes=None, ranks_per_node=None if "GPUS_PER_NODE" in variables else 1)

    def test_recipe_hidden(self):
        recipe = self.folder / "mine.yaml"
        recipe.write_text("base: quickstart\n")
        mounted = self.container["MOUNT"].replace(f"{self.folder}:{self.folder}", f"{self.folder}:/other")
        self.refuse(f"data=/other/{self.data.name}", recipe=recipe, data=False, variables=self.container | {"MOUNT": mounted},
                    parts=(f"recipe file {recipe} is not visible inside the container", "In the container it is /other/mine.yaml"))

    def test_allocation_too_small(self):
        for options, words, parts in (
            ((), (), ("8 ranks on 1 node need 8 CPUs", "salloc --nodes=1 --ntasks-per-node=8")),
            (("--cpus-per-task=8",), ("dist.device=cuda", "--program", "pharos"), ("need 8 GPUs of each", "salloc --nodes=1 --exclusive --gpus-per-node=8")),
        ):
            finished = self.in_allocation(1, *self.launch_words("small", "train.global_batch_size=64", *words, nodes=None, ranks_per_node=8), options=options)
            self.assert_exit(finished, 2)
            for part in parts:
                self.assertIn(part, finished.stdout)

    def test_no_slurm_in_path(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.refuse(variables={"PATH": str(empty)}, parts=("sbatch", "PATH"))

    def test_slurm_that_does_not_answer(self):
        self.refuse(variables={"SLURM_CONF": "/nonexistent/slurm.conf"}, parts=("SLURM does not answer", "SLURM_CONF"))

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            finished = self.in_allocation(2, *self.launch_words("port"), variables={"MASTER_PORT": str(port)})
        self.assert_exit(finished, 2)
        for part in (f"Port {port} of 127.0.0.1 is taken", "MASTER_PORT=", "fix:"):
            self.assertIn(part, finished.stdout)
        self.assertFalse((self.folder / "port/run.yaml").exists())

    def test_first_node_has_no_address(self):
        """No host of the name is known; SLURM's own address of the node serves, and without it the job says what is missing."""
        ghosts = ("--partition=all", "--nodelist=ghost1,ghost2")
        words = ("train.train_iters=1", *NO_EVALUATION)
        self.assert_exit(self.in_allocation(2, *self.launch_words("ghost", *words), options=ghosts), 0)
        silent = self.folder / "silent"
        silent.mkdir()
        (silent / "scontrol").write_text('#!/bin/sh\n[ "$2" != node ] || exit 1\nexec /usr/bin/scontrol "$@"\n')
        (silent / "scontrol").chmod(0o755)
        finished = self.in_allocation(2, *self.launch_words("silent_ghost", *words), options=ghosts, variables={"PATH": f"{silent}:{os.environ['PATH']}"})
        self.assert_exit(finished, 2)
        for part in ("MASTER_ADDR", "'ghost1'", "has no address", "/etc/hosts", "fix:"):
            self.assertIn(part, finished.stdout)


if __name__ == "__main__":
    run_in_namespaces()
    unittest.main(verbosity=2)
