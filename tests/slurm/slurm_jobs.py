"""What the tests on a SLURM share: a cluster and data for each class, submitting with `pharos launch`, waiting for steps."""

import os
import pathlib
import re
import subprocess

from slurm_cluster import SlurmCluster, wait_until  # first: it makes the next ones found

from free_ports import free_port
from pharos_program import PROGRAM, RECIPE, ProgramTest, losses, run  # noqa: F401

FIXED_BATCH = "train.rampup_batch_size=null"  # the ramp of the recipe does not divide over two ranks
# Steps without end, each at most a few hundredths of a second.
LONG = ("train.train_iters=100000", "checkpoint.save_interval=1000", "validation.eval_interval=100000", "logger.log_interval=100000")
CONTAINERS = pathlib.Path(__file__).resolve().parent / "containers"
RECIPES = pathlib.Path(__file__).resolve().parent.parent.parent / "recipes"
NO_EVALUATION = ("validation.eval_iters=0",)


def latest(folder):
    path = pathlib.Path(folder, "checkpoints/latest_checkpointed_iteration.txt")
    return int(path.read_text()) if path.exists() else 0


def num_steps(folder):
    return max(losses(folder), default=0) if pathlib.Path(folder, "metrics.jsonl").exists() else 0


def own_port():
    """All nodes, and other tests, share the ports of this machine."""
    return {"MASTER_PORT": str(free_port())}


def container_variables(folder):
    """SQSH, MOUNT and PATH for `pharos launch` with an image that has Pharos and takes all else from the machine, and with
    containers/srun in the place of pyxis. `folder` is seen by the tasks under the same name."""
    root = folder / "root"
    (root / "opt/pharos/bin").mkdir(parents=True)
    (root / "opt/pharos/bin/pharos").symlink_to(PROGRAM)
    for name in ("bin", "lib", "lib64", "sbin"):  # as Debian has them
        (root / name).symlink_to(f"usr/{name}")
    image = folder / "image.sqsh"
    subprocess.run(["mksquashfs", root, image, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    libraries = subprocess.run(["ldd", PROGRAM], check=True, capture_output=True, text=True).stdout
    mounts = {pathlib.Path(path).resolve().parent for path in re.findall(r"=> (/\S+)", libraries)} | {pathlib.Path(PROGRAM).resolve().parent, RECIPE.parent, RECIPES}
    mounts = sorted(str(mount) for mount in mounts if not mount.is_relative_to("/usr"))
    return {"SQSH": str(image), "MOUNT": ",".join(f"{mount}:{mount}" for mount in ("/usr", "/etc", *mounts, folder)),
            "PATH": f"{CONTAINERS}:/opt/pharos/bin:{os.environ['PATH']}"}


class SlurmTest(ProgramTest):
    """Work and run folders are in self.folder, which every node sees."""

    FURTHER_NODES = ()
    UNNAMED_NODES = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.cluster = cls.enterClassContext(SlurmCluster(further=cls.FURTHER_NODES, unnamed=cls.UNNAMED_NODES))

    def pharos(self, *words, **options):
        return self.cluster.command(PROGRAM, *words, cwd=self.folder, **options)

    def launch_words(self, name, *words, recipe=RECIPE, data=True, nodes=2, ranks_per_node=1):
        """`pharos launch` of a run in folder `name`: two nodes with one rank each, if nothing else is said."""
        settings = [f"data={self.data}", FIXED_BATCH] if data else []
        size = [*(["--nodes", nodes] if nodes else []), *(["--gpus-per-node", ranks_per_node] if ranks_per_node else [])]
        return ["launch", recipe, *settings, "--run-dir", self.folder / name, *size, *words]

    def launch(self, name, *words, variables=None, **options):
        return self.pharos(*self.launch_words(name, *words, **options), variables=own_port() | (variables or {}))

    def submit(self, name, *words, **options):
        """The number of the job that `pharos launch` queued."""
        finished = self.launch(name, *words, **options)
        self.assert_exit(finished, 0)
        found = re.search(r"\bjob (\d+)", finished.stdout)
        self.assertTrue(found, finished.stdout)
        return int(found[1])

    def in_allocation(self, nodes, *words, options=(), ranks_per_node=1, variables=None):
        allocation = ["salloc", "--quiet", f"--nodes={nodes}", f"--ntasks-per-node={ranks_per_node}", *options]
        return self.cluster.command(*allocation, PROGRAM, *words, cwd=self.folder, variables=own_port() | (variables or {}))

    def wait_steps(self, name, number, job):
        """Until run `name` has done `number` steps; the job must be running then."""
        wait_until(lambda: num_steps(self.folder / name) >= number, f"step {number} of {name}",
                   details=lambda: f"{self.cluster.job(job)}\n{self.cluster.output(job)}\n{self.cluster.logs()}")

    def assert_job(self, job, state, exit_code, restarts=0):
        fields = self.cluster.wait_job(job, state)
        self.assertEqual((fields["ExitCode"], fields["Restarts"]), (f"{exit_code}:0", str(restarts)), self.cluster.output(job))
        return self.cluster.output(job)

    def assert_close(self, found, expected, tolerance):
        self.assertEqual(sorted(found), sorted(expected))
        for step, loss in expected.items():
            self.assertLessEqual(abs(found[step] - loss) / loss, tolerance, f"step {step}")

    def uninterrupted(self, name, steps):
        """Losses of the first `steps` steps of a LONG run on two ranks of this machine that nobody stops."""
        folder = self.folder / name
        finished = self.train(folder, FIXED_BATCH, *LONG, f"train.exit_interval={steps}", "--nproc", 2)
        self.assert_exit(finished, 4)
        return losses(folder)
