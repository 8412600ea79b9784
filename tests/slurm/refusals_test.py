"""What `pharos launch` finds before the queue does, on a real SLURM: the message, exit code 2, and that no job was queued."""

import os
import pathlib
import socket
import subprocess
import unittest

from slurm_cluster import run_in_namespaces
from slurm_jobs import PROGRAM, SlurmTest


class Refusals(SlurmTest):
    UNNAMED_NODES = ("ghost1", "ghost2")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.image = cls.folder / "pharos+latest.sqsh"
        root = cls.folder / "root"
        (root / "bin").mkdir(parents=True)
        subprocess.run(["mksquashfs", root, cls.image, "-quiet"], check=True, stdout=subprocess.DEVNULL)
        (cls.folder / "weights").mkdir()

    def refuse(self, *words, parts, variables=None, name="never"):
        before = self.cluster.queued()
        finished = self.launch(name, *words, variables=variables)
        self.assert_exit(finished, 2)
        for part in parts:
            self.assertIn(part, finished.stdout)
        self.assertEqual(finished.stdout.count("error:"), 1, finished.stdout)
        self.assertIn("fix:", finished.stdout)
        self.assertEqual(self.cluster.queued(), before)
        self.assertFalse((self.folder / name).exists())
        return finished.stdout

    def test_before_the_queue(self):
        image, elsewhere = str(self.image), str(self.folder / "weights")
        for name, words, variables, parts in (
            ("image missing", (), {"SQSH": "missing.sqsh"}, ("missing.sqsh", "pharos image build")),
            ("mount source missing", (), {"SQSH": image, "MOUNT": "/nowhere:/data"}, ("/nowhere",)),
            ("weights not in the container", (f"model.hf_path={elsewhere}",), {"SQSH": image, "MOUNT": "/usr:/usr"}, (elsewhere, "MOUNT")),
            ("number of GPUs not a number", (), {"GPUS_PER_NODE": "eight"}, ("GPUS_PER_NODE", "eight")),
            ("more GPUs than a node has", (), {"GPUS_PER_NODE": "64"}, ("GPUS_PER_NODE", "64", "8")),
            ("override unknown", ("train.train_iter=1",), {}, ("train.train_iter", "train.train_iters")),
            ("port not a number", (), {"MASTER_PORT": "x"}, ("MASTER_PORT",)),
        ):
            with self.subTest(name):
                self.refuse(*words, variables=variables, parts=parts)

    def test_no_slurm_in_path(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.refuse(variables={"PATH": str(empty)}, parts=("sbatch", "PATH"))


if __name__ == "__main__":
    run_in_namespaces()
    unittest.main(verbosity=2)
