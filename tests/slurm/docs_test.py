"""Every command of docs/cluster.md and docs/cluster/*.md is run, in the order of its document, on a SLURM of two nodes.

A command is a line of a code block (indented or fenced), or `code` in a table of cluster.md, whose first word is a program. Most run as they
stand, in a folder that has no data. RULES says for the others what runs instead and why; a line that is a synopsis (it has … or
[brackets]) must name options that the program's help has. A program that no rule covers fails the test. Commands inside sentences are
not run."""

import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import unittest

from slurm_cluster import run_in_namespaces
from slurm_jobs import PROGRAM, SlurmTest, container_variables, own_port

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [ROOT / "docs/cluster.md", *sorted((ROOT / "docs/cluster").glob("*.md"))]
ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
# Words that begin a line of a code block and are neither output nor settings.
PROGRAMS = {"pharos", "./srun.sh", "srun.sh", "make", "sbatch", "salloc", "srun", "scontrol", "scancel", "squeue", "sinfo", "sacct",
            "docker", "podman", "buildah", "enroot", "kubectl", "nsys", "cd", "export", "mkdir", "cat", "tail", "grep", "git", "ls", "unsquashfs", "eval", "ctest"}


def code_lines(text):
    """Lines of code blocks with their number, continuation lines joined, without comments."""
    fenced, blank, in_block, held, held_at = False, True, False, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        in_block = fenced or line.startswith("    ") and (blank or in_block)
        blank = not line.strip()
        if not in_block or blank:
            continue
        code = re.sub(r"(^|\s+)#\s.*$", "", line.strip() if not fenced else line.rstrip())
        held, held_at = (held + " " + code.strip()).strip(), held_at or number
        if held.endswith("\\"):
            held = held[:-1].rstrip()
            continue
        if held:
            yield held_at, held
        held, held_at = "", 0


def first_word(command):
    words = command.split()
    while words and ASSIGNMENT.match(words[0]):
        words.pop(0)
    return words[0] if words else ""


def commands(document):
    found = []
    for number, line in code_lines(document.read_text()):
        word = first_word(line)
        if word in PROGRAMS or (word and shutil.which(word) and not re.search(r"[:=|]$", word)):
            found.append((number, line))
    for number, line in enumerate(document.read_text().splitlines(), 1):  # what its table says to run
        spans = re.findall(r"`([^`]+)`", line) if line.startswith("|") and document.name == "cluster.md" else []
        found += [(number, span) for span in spans if first_word(span) in PROGRAMS and " " in span]
    return found


@dataclasses.dataclass
class Rule:
    """A command that `pattern` finds runs as `run` says (a template of re.sub), and may leave with one of `codes`."""

    pattern: str
    run: str
    reason: str
    codes: tuple = (0,)


FEW_STEPS = "train.train_iters=2 validation.eval_iters=0 model.num_layers=2 model.moe_layer_freq=[0,1] train.global_batch_size=8 train.micro_batch_size=2 dataset.seq_length=32"
DOCTOR = (0, 2)  # what is found depends on the machine; there must be a table of checks
RULES = [
    Rule(r"^make (\S+.*)$", r"make --dry-run --directory REPOSITORY \1", "building and installing take many minutes; make says what it would run"),
    Rule(r"^((docker|podman|buildah|enroot|kubectl|nsys|ctest) .*)$", "bash -n", "the program or what it needs (a registry, a cluster, a GPU, a build folder) is not here"),
    Rule(r"^(pharos image build .*)$", r"\1 --dry-run", "takes minutes or needs a registry; process.image builds an image"),
    Rule(r"^pharos image run (\S+) (.*)-- pharos train (.*)$", r"pharos image run \1 --mount MOUNTS \2-- pharos train \3 " + FEW_STEPS,
         "the image here takes all but Pharos from the machine; few steps"),
    Rule(r"^pharos image run (\S+) (.*)$", r"pharos image run \1 --mount MOUNTS \2", "the image here takes all but Pharos from the machine"),
    Rule(r"^(.*) --exclusive --gpus-per-node=8 srun --ntasks-per-node=8 (?:--container-\S+ )*(.*pharos doctor.*) --gpus 8 --shared /fsx('?)$", r"\1 srun --ntasks-per-node=1 \2 --shared .\3",
         "no GPUs, no pyxis and no /fsx here; fewer ranks", DOCTOR),
    Rule(r"^(.*pharos doctor.*) --gpus 8 --shared /fsx$", r"\1 --shared .", "no GPUs and no /fsx here", DOCTOR),
    Rule(r"^(.*pharos doctor.*)$", r"\1", "runs as it stands", DOCTOR),
    Rule(r"^(pharos launch (?=.*--dry-run).*)$", r"\1", "runs as it stands"),
    Rule(r"^(.*pharos launch (?=.*(_pretrain|--nsys)).*)$", r"\1 --dry-run", "the recipe needs GPUs"),
    Rule(r"^(.*(pharos launch|srun\.sh) .*)$", rf"\1 {FEW_STEPS}", "all of the recipe's steps would take minutes"),
    Rule(r"^(grep .*)$", r"\1", "no node fails here, so nothing is found; without the file the code is 2", (0, 1)),
    Rule(r"^scontrol update jobid=JOB (timelimit=.*)$", r"job=$(sbatch --parsable --begin=now+1hour --wrap=true) && scontrol update jobid=$job \1 && scontrol update jobid=$job starttime=now+1",
         "needs a job that waits, and the test waits for its end"),
    Rule(r"^scontrol update jobid=JOB (.*)$", r"scontrol update jobid=$(sbatch --parsable --begin=now+1hour --wrap=true) \1", "needs a job that waits"),
    Rule(r"^(pharos train (?!.*--resume).*)train\.exit_interval=20; echo \$\?$", rf"\1train.exit_interval=1 {FEW_STEPS}; [ $? = 4 ]", "few steps"),
    Rule(r"^(pharos train (?!.*(--resume|train_iters)).*)$", rf"\1 {FEW_STEPS}", "few steps"),
    Rule(r"^(pharos train .*--resume .*); echo \$\?$", r"\1; [ $? = 0 ]", "the document says which code"),
]


def is_synopsis(command):
    return "…" in command or re.search(r"(^|\s)\[", command) is not None


class Documents(SlurmTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.container = container_variables(cls.folder)

    def place(self, document):
        """A folder with what the commands of a document find in the working folder of who follows it."""
        folder = self.folder / f"follows_{document.stem}"
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/pharos").symlink_to(PROGRAM)
        for name in ("docker", "recipes", "srun.sh", "docs", "Makefile", "tools"):
            (folder / name).symlink_to(ROOT / name)
        if document.stem == "doctor":
            (folder / "runs/first").mkdir(parents=True)
            shutil.copy(ROOT / "tests/data/doctor/efa_gin.log", folder / "runs/first/rank_0.log")
        if document.stem == "image":
            shutil.copy(self.container["SQSH"], folder / "pharos-cpu+latest.sqsh")
        return folder

    def substitute(self, command, folder):
        """RUN is the first run of the document and JOB its job; what is written to /tmp is written into the folder."""
        command = command.replace("--mount .:/work --workdir /work", "--mount .:/here --workdir /here")  # the repository may be in /work
        logs = sorted(folder.glob("runs/first/slurm-*.log"))
        command = command.replace("/tmp/", f"{folder}/").replace("REPOSITORY", str(ROOT)).replace("MOUNTS", self.container["MOUNT"])
        if logs:
            command = re.sub(r"\bJOB\b", logs[0].stem.removeprefix("slurm-"), command)
        return re.sub(r"\bRUN\b", "runs/first", command)

    def follow(self, command, folder):
        """Runs one command; its rule, what ran and what came of it."""
        rule = next((rule for rule in RULES if re.search(rule.pattern, command)), Rule("", "", "runs as it stands"))
        ran = re.sub(rule.pattern, rule.run, command) if rule.run else command
        if ran == "bash -n":
            ran = f"bash -n -c {shlex.quote(command)}"
        jobs = self.cluster.queued()
        ran = self.substitute(ran, folder)
        variables = own_port() | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
        finished = self.cluster.command("bash", "-c", ran, cwd=folder, variables=variables)
        for job in sorted(set(self.cluster.queued()) - set(jobs)):
            self.cluster.wait_job(job, "COMPLETED")
        return rule, ran, finished

    def check_synopsis(self, command):
        words = command.split()
        while ASSIGNMENT.match(words[0]) or words[0].startswith("["):
            words.pop(0)
        if words[0] != "pharos":
            return
        parts = []
        for word in words[1:]:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", word):
                break
            parts.append(word)
        shown = self.pharos(*parts, "--help")
        self.assert_exit(shown, 0)
        for option in re.findall(r"--[a-z][a-z0-9-]*", command):
            self.assertRegex(shown.stdout, rf"{option}\b", command)

    def check_document(self, document):
        folder, found = self.place(document), commands(document)
        self.assertTrue(found, f"{document} has no command")
        for number, command in found:
            with self.subTest(f"{document.name}:{number}", command=command):
                self.assertIn(first_word(command), PROGRAMS, "a program that the test does not know")
                if is_synopsis(command):
                    self.check_synopsis(command)
                    continue
                rule, ran, finished = self.follow(command, folder)
                self.assertIn(finished.returncode, rule.codes, f"{ran}\n{finished.stdout[-3000:]}")
                if rule.codes == DOCTOR:
                    self.assertRegex(finished.stdout, r"\d+ failures?, \d+ warnings?", ran)
                self.assertNotIn("not expected", finished.stdout, ran)  # an option that is not there is code 2 as well


def add_test(document):
    setattr(Documents, f"test_{document.stem}", lambda self: self.check_document(document))


for each_document in DOCUMENTS:
    add_test(each_document)


if __name__ == "__main__":
    run_in_namespaces()
    unittest.main(verbosity=2)
