"""A SLURM of two nodes on this machine: munged, slurmctld and one slurmd a node, in a temporary folder, with free ports.

Needs the Debian packages slurm-wlm and munge and root, who may make namespaces: run_in_namespaces() puts the whole test
process into its own process and mount namespace, where the nodes' names stand in /etc/hosts. Whatever happens to the test,
nothing outlives it, and two tests at once do not meet."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))

from free_ports import free_ports  # noqa: E402

NODES = ("n1", "n2")
START_S = 60  # for a daemon that does not come up, or a job that never reaches its state: the test fails then
JOB_S = 90
ENDED = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT")
INSIDE = "PHAROS_TEST_NAMESPACES"

CONFIGURATION = """\
ClusterName=pharos_test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
TmpFS={folder}/tmp_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd_%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
JobRequeue=1
ReturnToService=2
SlurmdTimeout=60
KillWait=60
MinJobAge=3600
MpiDefault=none
GresTypes=gpu
{nodes}
PartitionName=main Nodes={main} Default=YES MaxTime=INFINITE
PartitionName=all Nodes=ALL MaxTime=INFINITE
PartitionName=short Nodes={main} MaxTime=00:30:00
"""


def run_in_namespaces(variables=None):
    """Replaces this process by one in namespaces of its own, once. A shell is their process 1, which reaps orphans; when it
    ends or the outer process is killed, the kernel ends all that is left."""
    if os.environ.get(INSIDE) == "1":
        return
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        sys.exit(f"tests/slurm need root that may make namespaces (CAP_SYS_ADMIN): {probe.stderr.strip()}")
    os.execvpe(command[0], [*command, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *sys.argv],
               os.environ | {INSIDE: "1"} | (variables or {}))


def wait_until(condition, what, seconds=JOB_S, details=lambda: ""):
    """The first true value of condition(); AssertionError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"never came: {what}\n{details()}")


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def parent_of(pid):
    try:
        return int(re.search(r"^PPid:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])
    except OSError:
        return 0


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


class SlurmCluster:
    """`with SlurmCluster() as cluster:` has all nodes idle. cluster.environment is for every command that talks to it."""

    def __init__(self, nodes=NODES, further=(), unnamed=(), cpus_per_node=16, gpus_per_node=8):
        """nodes: of the default partition; further: only in partition `all`; unnamed: likewise, and no host of that name is
        known. GPUs exist for the scheduler alone."""
        self.main, self.named = tuple(nodes), (*nodes, *further)
        self.nodes = (*self.named, *unnamed)
        self.cpus_per_node, self.gpus_per_node = cpus_per_node, gpus_per_node
        self.processes = {}

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="pharos_slurm_")
        self.folder = pathlib.Path(self.temporary.name)
        # munged refuses a socket that others cannot reach; srun's tasks and sbatch's scripts read below here.
        self.folder.chmod(0o755)
        try:
            self._name_hosts()
            self._configure()
            self._start_munge()
            self._start_daemons()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if "slurmctld" in self.processes:
            subprocess.run(["scancel", "--user=root", "--signal=KILL"], env=self.environment, capture_output=True, timeout=START_S, check=False)
        for name in [*self.nodes, "slurmctld", "munged"]:
            self._end(name)
        for pid in self._processes_with(f"SLURM_CONF={self.environment['SLURM_CONF']}"):  # steps and tasks survive their slurmd
            kill(pid)
        subprocess.run(["umount", "/etc/hosts"], capture_output=True, check=False)
        self.temporary.cleanup()

    def _name_hosts(self):
        hosts = self.folder / "hosts"
        hosts.write_text(pathlib.Path("/etc/hosts").read_text() + "".join(f"127.0.0.1 {name}\n" for name in self.named))
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)

    def _configure(self):
        controller_port, *self.ports = free_ports(1 + len(self.nodes))
        lines = [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus_per_node} RealMemory=64000 Gres=gpu:{self.gpus_per_node}"
            for name, port in zip(self.nodes, self.ports)
        ]
        configuration = self.folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(
            host=socket.gethostname(), controller_port=controller_port, folder=self.folder, nodes="\n".join(lines), main=",".join(self.main)))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{self.gpus_per_node - 1}]\n")
        for number in range(self.gpus_per_node):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "state").mkdir()
        for name in self.nodes:
            (self.folder / f"spool_{name}").mkdir()
            (self.folder / f"tmp_{name}").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SALLOC", "MASTER_", "PHAROS_"))}
        self.environment = kept | {"SLURM_CONF": str(configuration), "OMP_NUM_THREADS": "1"}

    def _start(self, name, *command):
        log = (self.folder / f"{name}.out").open("ab")
        self.processes[name] = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env=self.environment, start_new_session=True)
        log.close()

    def _start_munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._start("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                    f"--log-file={self.folder}/munged.log", f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed")
        wait_until(lambda: (self.folder / "munge.socket").exists(), "munged", START_S, self.logs)

    def _start_daemons(self):
        self._start("slurmctld", "slurmctld", "-D", "-i")
        wait_until(lambda: self.command("scontrol", "ping").returncode == 0, "slurmctld", START_S, self.logs)
        for name in self.nodes:
            self.start_node(name)
        self.wait_idle()

    def _end(self, name):
        process = self.processes.pop(name, None)
        if not process:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _processes_with(self, variable):
        """Numbers of the processes whose environment has NAME=VALUE, besides this one."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it ended
                continue
        return found

    def start_node(self, name):
        self._start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name):
        """As if the machine had lost power: its slurmd, the steps' slurmstepd and all that they run."""
        tasks = self._processes_with(f"SLURMD_NODENAME={name}")
        steps = {parent for pid in tasks if (parent := parent_of(pid)) and command_of(parent).startswith("slurmstepd")}
        slurmd = self.processes.pop(name)
        slurmd.kill()
        slurmd.wait()
        for pid in [*steps, *tasks]:
            kill(pid)

    def kill_rank(self, job, rank):
        ranks = set(self._processes_with(f"SLURM_JOB_ID={job}")) & set(self._processes_with(f"RANK={rank}"))
        assert ranks, f"job {job} has no rank {rank}"
        for pid in ranks:
            kill(pid)

    def wait_gone(self, job):
        """Until no node runs a step of the job: SLURM may start a requeued job while the last one's are still ending, and such a
        start can hang."""
        steps = lambda: [entry for entry in pathlib.Path("/proc").iterdir()
                         if entry.name.isdigit() and command_of(entry.name).startswith(f"slurmstepd: [{job}.")]  # fmt: skip
        wait_until(lambda: not steps(), f"end of the steps of job {job}", details=self.logs)

    def wait_idle(self, *nodes):
        wait_until(lambda: {self.node_states().get(name) for name in nodes or self.nodes} == {"idle"}, "idle nodes", START_S, self.logs)

    def node_states(self):
        output = self.command("sinfo", "--noheader", "--Node", "--format=%N %t").stdout
        return dict(line.split() for line in output.splitlines() if len(line.split()) == 2)

    def logs(self):
        controller = (self.folder / "slurmctld.log").read_text(errors="replace") if (self.folder / "slurmctld.log").exists() else ""
        nodes = [line for path in sorted(self.folder.glob("slurmd_*.log")) for line in path.read_text(errors="replace").splitlines()
                 if "error:" in line and "gres.conf" not in line]
        return "\n".join([controller[-2000:], *nodes[-20:], self.command("squeue").stdout, self.command("sinfo").stdout])

    def command(self, *words, timeout=JOB_S, variables=None, **options):
        """The finished process; standard error in its output."""
        return subprocess.run([str(word) for word in words], env=self.environment | (variables or {}), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout, check=False, **options)

    def job(self, number):
        """What `scontrol show job` says of a job or array element, by field name."""
        output = self.command("scontrol", "show", "job", "--oneliner", str(number)).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", output.splitlines()[0] if output else ""))

    def wait_job(self, number, *states, condition=lambda _: True, seconds=JOB_S):
        """The job's fields once its state is one of `states`; AssertionError when it ends in another."""
        def look():
            fields = self.job(number)
            state = fields.get("JobState", "")
            if state in states and condition(fields):
                return fields
            assert state not in ENDED or state in states, f"job {number} is {state}: {fields}\n{self.output(number)}\n{self.logs()}"
            return None
        return wait_until(look, f"job {number} {' or '.join(states)}", seconds,
                          lambda: f"{self.job(number)}\n{self.output(number)}\n{self.logs()}")

    def output(self, number):
        path = pathlib.Path(self.job(number).get("StdOut", "/nonexistent"))
        return path.read_text(errors="replace") if path.is_file() else ""

    def queued(self):
        """Numbers of all jobs the controller has ever been given."""
        output = self.command("scontrol", "show", "job", "--oneliner").stdout
        return [int(number) for number in re.findall(r"^JobId=(\d+)", output, re.MULTILINE)]


if __name__ == "__main__":  # a shell with a cluster around it, to try things by hand
    run_in_namespaces()
    with SlurmCluster(further=sys.argv[1:]) as shell_cluster:
        subprocess.run(["bash", "--norc"], env=shell_cluster.environment, check=False)
