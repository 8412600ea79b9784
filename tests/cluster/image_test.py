"""Images: what docker/Dockerfile says, `pharos image build` with stand-ins for the container engines and with a real buildah,
and the Debian image for the CPU, which is built, looked into and run.

The CPU image needs root or user namespaces, mmdebstrap, squashfs-tools and a Debian mirror (tools/packages-test.txt)."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import textwrap
import time
import unittest

from pharos_program import PROGRAM, RECIPE, ProgramTest, run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "docker/Dockerfile"
TOOLS = "bash sh env cat cp mkdir rm sleep tar touch mv ln mksquashfs unsquashfs".split()

# Stands in for docker and podman: writes down what it is asked and does the least that lets the next command go on.
ENGINE = r"""#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
printf '%s' "${0##*/}" >> "$FAKE_LOG"; printf ' %q' "$@" >> "$FAKE_LOG"; echo >> "$FAKE_LOG"
if [ "$FAKE_FAIL" = "$1" ]; then echo "${FAKE_MESSAGE:-it broke}" >&2; exit 1; fi
case $1 in
  build) echo 'STEP 1/1: FROM scratch'; if [ "$FAKE_HANG" = build ]; then touch "$FAKE_LOG.hangs"; sleep 1000; fi ;;
  inspect) echo '[{"Config": {"Env": ["PATH=/opt/tool/bin:/usr/bin", "GREETING=a b"], "WorkingDir": "/w"}}]' ;;
  cp) mkdir -p "$FAKE_ROOT/etc"; cp "$2" "$FAKE_ROOT/${3#*:}" ;;
  export) tar -C "$FAKE_ROOT" -cf "$3" . ;;
esac
"""

ENROOT = r"""#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
printf 'enroot' >> "$FAKE_LOG"; printf ' %q' "$@" >> "$FAKE_LOG"; echo >> "$FAKE_LOG"
tar -C "$FAKE_ROOT" -c . | mksquashfs - "$3" -tar -no-progress > /dev/null
"""


def instructions(text):
    """(instruction, rest) of a Dockerfile; continued lines are one, comments are none."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = []
    for line in re.sub(r"\\\n", "", "\n".join(lines) + "\n").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            found.append((name.upper(), rest.strip()))
    return found


def stages(text):
    """A list of (name, base, instructions) of a Dockerfile; the first one, without name, is what stands before any FROM."""
    found = [("", "", [])]
    for name, rest in instructions(text):
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            found.append((stage.strip(), base.strip(), []))
        else:
            found[-1][2].append((name, rest))
    return found


def used_variables(text):
    return set(re.findall(r"\$\{?!?([A-Za-z_][A-Za-z_0-9]*)", text))


def faults(text, folder):
    """What is wrong with a Dockerfile whose context is `folder`, as sentences."""
    wrong = []
    all_stages = stages(text)
    known = {stage for stage, _, _ in all_stages if stage}
    table = {rest.split("=")[0] for name, rest in all_stages[0][2] if name == "ARG"}
    needed = set()
    for stage, base, steps in all_stages[1:]:
        needed |= used_variables(base)
        declared = {rest.split("=")[0] for name, rest in steps if name == "ARG"}
        used = set().union(*(used_variables(rest) for name, rest in steps if name != "ARG"))
        # A loop over names reads ${!name}.
        loops = set(re.findall(r"\b[A-Z][A-Z_]*(?:VERSION|COMMIT)\b", " ".join(rest for name, rest in steps if name == "RUN")))
        wrong += [f"stage {stage}: ARG {name} is not used" for name in sorted(declared - used - loops)]
        wrong += [f"stage {stage}: {name} is used without ARG" for name in sorted((used | loops) & table - declared)]
        wrong += [f"stage {stage}: ARG {name} is not in the table" for name in sorted(declared - table)]
        needed |= declared
        for name, rest in steps:
            if name not in {"ARG", "RUN", "ENV", "COPY", "SHELL", "WORKDIR"}:
                wrong.append(f"stage {stage}: instruction {name} is not known")
            if name == "COPY" and rest.startswith("--from="):
                source = rest.split()[0].removeprefix("--from=")
                if source not in known:
                    wrong.append(f"stage {stage}: COPY from the unknown stage {source}")
            elif name == "COPY":
                wrong += [f"stage {stage}: COPY {source} does not exist" for source in rest.split()[:-1] if not (folder / source).exists()]
            elif name == "RUN":
                checked = subprocess.run(["bash", "-n", "-c", rest], capture_output=True, text=True, check=False)
                if checked.returncode:
                    wrong.append(f"stage {stage}: RUN {rest[:40]}…: {checked.stderr.strip()}")
    return wrong + [f"ARG {name} of the table is not used" for name in sorted(table - needed)]


class DockerfileTest(unittest.TestCase):
    def test_the_checks_see_faults(self):
        text = "ARG A=1\nARG B=2\nFROM x:${A} AS one\nARG A\nARG C\nRUN if true; echo ${B}\nCOPY gone /\nCOPY --from=two /a /b\nVOLUME /x\n"
        found = "\n".join(faults(text, ROOT))
        for part in ["ARG A is not used", "B is used without ARG", "ARG C is not in", "COPY gone", "stage two", "VOLUME", "RUN if true", "ARG B of the table"]:
            self.assertIn(part, found)

    def test_the_dockerfile_is_sound(self):
        self.assertEqual(faults(DOCKERFILE.read_text(), ROOT), [])

    def test_versions_are_those_of_the_table(self):
        table = dict(line.split("=", 1) for line in (ROOT / "docker/versions.env").read_text().splitlines() if line and line[0] != "#")
        arguments = dict(rest.split("=", 1) for name, rest in stages(DOCKERFILE.read_text())[0][2] if name == "ARG")
        self.assertEqual({name: value for name, value in arguments.items() if name.endswith(("_VERSION", "_COMMIT"))}, table)
        recorded = next(rest for name, rest in instructions(DOCKERFILE.read_text()) if "share/pharos/versions.env" in rest)
        self.assertEqual(set(re.findall(r"[A-Z_]+(?:_VERSION|_COMMIT)\b", recorded)), set(table))

    def test_it_ends_with_the_check_and_holds_no_secret(self):
        last = instructions(DOCKERFILE.read_text())[-1]
        self.assertEqual(last, ("RUN", "pharos doctor --image"))
        self.assertNotRegex(DOCKERFILE.read_text(), r"(?i)password|token|secret|://[^/\s]*@")
        ignored = (ROOT / ".dockerignore").read_text().split("\n")
        for name in [".git", "build", "runs", "data", ".venv*"]:
            self.assertIn(name, ignored)
        for name, rest in instructions(DOCKERFILE.read_text()):
            if name == "COPY" and not rest.startswith("--from="):
                self.assertFalse(set(rest.split()[:-1]) & set(ignored), rest)


class BuildTest(unittest.TestCase):
    """`pharos image build` of Dockerfiles; PATH holds stand-ins and the few tools that they and squashing need."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="pharos_image_")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.tools, self.out, self.log = self.folder / "tools", self.folder / "out", self.folder / "log"
        self.tools.mkdir()
        for name in TOOLS:
            (self.tools / name).symlink_to(shutil.which(name))
        root = self.folder / "root"
        (root / "usr/local/share/pharos").mkdir(parents=True)
        (root / "usr/local/share/pharos/versions.env").write_text("NCCL_VERSION=2.29.3-1\nPHAROS_VERSION=0.1.0\n")
        (self.folder / "Dockerfile").write_text("ARG NCCL_VERSION=1\nARG OTHER=2\nFROM scratch\nENV GREETING='a b' EMPTY=\nCOPY Dockerfile /f\n")
        (self.folder / "versions.env").write_text("NCCL_VERSION=2.29.3-1\nNOT_DECLARED=3\n")
        self.environment = {"PATH": str(self.tools), "FAKE_LOG": str(self.log), "FAKE_ROOT": str(root), "HOME": str(self.folder)}

    def add(self, name, script=ENGINE):
        (self.tools / name).write_text(script)
        (self.tools / name).chmod(0o755)

    def words(self, *words):
        return ["image", "build", "-n", "pharos", "-f", self.folder / "Dockerfile", "--context", self.folder, "--output", self.out, *words]

    def build(self, *words, **variables):
        return run(*self.words(*words), env={**self.environment, **variables})

    def logged(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def assert_nothing_left(self):
        self.assertEqual(list(self.out.iterdir()) if self.out.exists() else [], [])

    def test_docker_without_enroot(self):
        self.add("docker")
        finished = self.build("--build-arg", "OTHER=mine", "--tag", "v1")
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertEqual([line.split()[1] for line in self.logged()], ["info", "build", "create", "inspect", "cp", "export", "rm"])
        self.assertIn("build --tag pharos:v1", self.logged()[1])
        self.assertIn("--build-arg NCCL_VERSION=2.29.3-1 --build-arg OTHER=mine", self.logged()[1])
        self.assertNotIn("NOT_DECLARED", self.logged()[1])
        self.assertIn("STEP 1/1", finished.stdout)
        image = self.out / "pharos+v1.sqsh"
        self.assertEqual(list(self.out.iterdir()), [image])
        facts = json.loads(run("image", "inspect", image, "--json").stdout)
        self.assertEqual(facts["versions"], {"NCCL_VERSION": "2.29.3-1", "PHAROS_VERSION": "0.1.0"})
        self.assertEqual(facts["compression"], "zstd")
        self.assertEqual(facts["bytes"], image.stat().st_size)
        environment = subprocess.run(["unsquashfs", "-cat", str(image), "etc/environment"], capture_output=True, text=True, check=True)
        self.assertEqual(environment.stdout, "PATH=/opt/tool/bin:/usr/bin\nGREETING=a b\n")

    def test_a_build_argument_of_the_user_wins(self):
        self.add("docker")
        self.assertEqual(self.build("--build-arg", "NCCL_VERSION=2.30").returncode, 0)
        self.assertIn("--build-arg NCCL_VERSION=2.30 ", self.logged()[1])
        self.assertNotIn("2.29.3", self.logged()[1])

    def test_enroot_imports_where_it_is(self):
        for builder, scheme in [("docker", "dockerd://"), ("podman", "podman://")]:
            self.add(builder)
            self.add("enroot", ENROOT)
            finished = self.build("--builder", builder)
            self.assertEqual(finished.returncode, 0, finished.stdout)
            self.assertIn(f"{scheme}pharos:latest", self.logged()[-1])
            self.assertEqual([path.name for path in self.out.iterdir()], ["pharos+latest.sqsh"])

    def test_auto_passes_over_a_docker_without_daemon(self):
        self.add("docker")
        (self.tools / "docker").write_text("#!/bin/bash\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
        self.add("podman")
        finished = self.build()
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertIn("docker cannot be used: Cannot connect to the Docker daemon", finished.stdout)
        self.assertTrue(all(line.startswith("podman") for line in self.logged()))

    def test_faults_are_named_and_nothing_is_left(self):
        self.add("docker")
        cases = [
            (["--builder", "podman"], {}, "The builder podman is not in PATH"),
            (["--builder", "docker"], {"FAKE_FAIL": "info", "FAKE_MESSAGE": "Cannot connect to the Docker daemon"}, "Cannot connect to the Docker daemon"),
            (["--builder", "auto"], {"FAKE_FAIL": "info"}, "There is nothing to build an image with"),
            ([], {"FAKE_FAIL": "build", "FAKE_MESSAGE": "unknown instruction"}, "unknown instruction"),
            ([], {"FAKE_FAIL": "export", "FAKE_MESSAGE": "write /x: no space left on device"}, "The disk is full"),
            ([], {"FAKE_FAIL": "inspect"}, "inspect"),
            (["-f", "/no/Dockerfile"], {}, "There is no Dockerfile /no/Dockerfile"),
            (["--build-arg", "=1"], {}, "Cannot read the build argument"),
            (["--tag", "a/b"], {}, "--tag 'a/b'"),
            (["--cpu"], {}, "--cpu excludes"),
        ]
        for words, variables, expected in cases:
            with self.subTest(expected):
                command = self.words(*words)
                if "-f" in words:
                    command = ["image", "build", "-n", "pharos", "--output", self.out, *words]
                finished = run(*command, env={**self.environment, **variables})
                self.assertEqual(finished.returncode, 2, finished.stdout)
                self.assertIn(expected, finished.stdout)
                self.assert_nothing_left()

    def test_squashfs_tools_are_missed_before_the_build(self):
        self.add("docker")
        (self.tools / "mksquashfs").unlink()
        finished = self.build()
        self.assertEqual(finished.returncode, 2, finished.stdout)
        self.assertIn("Install squashfs-tools", finished.stdout)
        self.assertEqual([line.split()[1] for line in self.logged()], ["info"])

    def test_a_failed_build_leaves_the_image_of_before(self):
        self.add("docker")
        self.out.mkdir()
        (self.out / "pharos+latest.sqsh").write_text("of before")
        self.assertEqual(self.build(FAKE_FAIL="export").returncode, 2)
        self.assertEqual((self.out / "pharos+latest.sqsh").read_text(), "of before")
        self.assertEqual(len(list(self.out.iterdir())), 1)
        self.assertEqual(self.logged()[-1].split()[1], "rm")

    def test_a_signal_takes_everything_back(self):
        self.add("docker")
        for number in [signal.SIGINT, signal.SIGTERM]:
            hangs = pathlib.Path(f"{self.log}.hangs")
            hangs.unlink(missing_ok=True)
            with subprocess.Popen([PROGRAM, *map(str, self.words())], env={**self.environment, "FAKE_HANG": "build"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                while not hangs.exists() and process.poll() is None:
                    time.sleep(0.02)
                process.send_signal(number)
                output, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, -number, output)
            self.assert_nothing_left()

    def test_a_dry_run_prints_commands_and_makes_nothing(self):
        for builder, parts in [
            ("docker", ["docker build --tag pharos:latest", "docker export", "mksquashfs", "docker rm --force"]),
            ("podman", ["podman build", "podman cp"]),
            ("buildah", ["buildah build", "buildah from", "mksquashfs", "buildah rm"]),
        ]:
            finished = self.build("--dry-run", "--builder", builder)
            self.assertEqual(finished.returncode, 0, finished.stdout)
            for part in parts:
                self.assertIn(part, finished.stdout)
            self.assertEqual(subprocess.run(["bash", "-n", "-c", finished.stdout], check=False).returncode, 0)
            self.assertFalse(self.out.exists())

    @unittest.skipUnless(shutil.which("buildah"), "buildah is not installed")
    def test_a_real_buildah(self):
        finished = run(*self.words("--builder", "buildah"))
        name = "localhost/pharos:latest"
        self.addCleanup(subprocess.run, ["buildah", "rmi", name], capture_output=True, check=False)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        listing = subprocess.run(["unsquashfs", "-cat", str(self.out / "pharos+latest.sqsh"), "etc/environment", "f"], capture_output=True, text=True, check=True).stdout
        self.assertIn("GREETING=a b\n", listing)
        self.assertIn("FROM scratch", listing)
        containers = subprocess.run(["buildah", "containers", "--format", "{{.ContainerName}}"], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("pharos-image", containers)


class InspectTest(unittest.TestCase):
    def setUp(self):
        self.inside = pathlib.Path(tempfile.mkdtemp(prefix="pharos_inspect_"))
        self.addCleanup(shutil.rmtree, self.inside)
        table = self.inside / "root/usr/local/share/pharos/versions.env"
        table.parent.mkdir(parents=True)
        table.write_text("A=1\n")
        self.image = self.inside / "-o"
        subprocess.run(["mksquashfs", self.inside / "root", self.image, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)

    def inspect(self, *words):
        return run("image", "inspect", "--json", *words, cwd=self.inside)

    def test_a_name_is_no_option(self):
        finished = self.inspect("--", "-o")
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertEqual(json.loads(finished.stdout)["versions"], {"A": "1"})

    def test_a_damaged_image_is_an_error(self):
        data = bytearray(self.image.read_bytes())
        data[96:] = bytes(len(data) - 96)
        self.image.write_bytes(data)
        finished = self.inspect(self.image)
        self.assertEqual(finished.returncode, 2, finished.stdout)
        self.assertIn("damaged", finished.stdout)

    def test_an_image_without_pharos_is_none(self):
        shutil.rmtree(self.inside / "root/usr")
        self.image.unlink()
        subprocess.run(["mksquashfs", self.inside / "root", self.image, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
        finished = self.inspect(self.image)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertFalse(json.loads(finished.stdout)["has_pharos"])


class CpuImageTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.image = cls.folder / "pharos-cpu+latest.sqsh"
        cls.built = run("image", "build", "-n", "pharos-cpu", "--cpu", "--output", cls.folder, timeout=800)

    def in_image(self, script, *options, **more):
        return run("image", "run", self.image, "--unpack-to", self.folder, *options, "--", "bash", "-euc", textwrap.dedent(script), timeout=300, **more)

    def test_it_is_built_and_runs(self):
        self.assertEqual(self.built.returncode, 0, self.built.stdout)
        self.assertRegex(self.built.stdout, re.escape(str(self.folder)) + "/[.]pharos-cpu[^/]*/packages/mmdebstrap[.]")
        facts = json.loads(run("image", "inspect", self.image, "--json").stdout)
        self.assertEqual(facts["versions"]["PHAROS_VERSION"], run("--version").stdout.strip())
        results = self.folder / "results"
        results.mkdir()
        secret = self.folder / "read-only.txt"
        secret.write_text("as before")
        finished = self.in_image(
            """
            test ! -e /home || test -z "$(ls /home)"
            test "$(readlink -f /proc/self/exe)" = /usr/bin/bash || test "$(readlink -f /proc/self/exe)" = /usr/bin/readlink
            test "$(command -v pharos)" = /usr/local/bin/pharos
            ! echo changed > /data/read-only.txt
            getent hosts localhost
            test -s /etc/ssl/certs/ca-certificates.crt
            test ! -e /etc/apt/apt.conf.d/99mmdebstrap
            test ! -e /etc/apt/sources.list
            pharos recipes list > /results/recipes
            if pharos --help | grep -q ' doctor '; then pharos doctor --image; fi
            pharos train quickstart data=/run-data/tiny train.train_iters=2 validation.eval_iters=2 --run-dir /results/quickstart
            pharos train /recipe.yaml data=/run-data/tiny train.train_iters=4 --nproc 2 train.rampup_batch_size=null --run-dir /results/tiny
            exit 7
            """,
            "--mount", f"{results}:/results,{self.data.parent}:/run-data:ro", "--mount", f"{RECIPE}:/recipe.yaml", "--mount", f"{secret}:/data/read-only.txt:ro",
            "--workdir", "/workspace",
        )
        self.assertEqual(finished.returncode, 7, finished.stdout)
        self.assertIn("quickstart", (results / "recipes").read_text())
        for name in ["quickstart", "tiny"]:
            self.assertTrue((results / name / "metrics.jsonl").stat().st_size, name)
        self.assertEqual(secret.read_text(), "as before")
        self.assertEqual([path for path in self.folder.iterdir() if path.name.startswith("pharos-image.")], [])


if __name__ == "__main__":
    unittest.main()
