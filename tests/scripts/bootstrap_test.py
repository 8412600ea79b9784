"""tools/bootstrap against made-up machines: dpkg-query, apt-get, id and python3 are small scripts that keep a log."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# $STATE is the machine: installed (one package a line), log (commands that changed it), apt_faults and pip_faults (how many
# of the next installs fail).
FAULT = 'faults=$(cat "$STATE/{0}_faults"); [ "$faults" = 0 ] || {{ echo $((faults - 1)) >"$STATE/{0}_faults"; exit 1; }}\n'
SCRIPTS = {
    "dpkg-query": 'for name; do :; done; grep -qx "$name" "$STATE/installed" && printf installed\n',
    "id": 'echo "$FAKE_UID"\n',
    "apt-get": 'echo "apt-get $*" >>"$STATE/log"; [ "$1" = install ] || exit 0\n'
    + FAULT.format("apt")
    + 'for name; do case $name in -*|install) ;; *) echo "$name" >>"$STATE/installed" ;; esac; done\n',
    "python3": 'echo "python3 $*" >>"$STATE/log"; mkdir -p "$3/bin" && cp "$STATE/python" "$3/bin/python"\n',
}
# The Python inside a virtual environment: `import …` works once pip has installed.
PYTHON = (
    'here=$(dirname "$0"); case "$*" in\n'
    '*"pip install"*) echo "pip install" >>"$STATE/log"\n' + FAULT.format("pip") + 'touch "$here/torch" ;;\n'
    '*"import torch"*) [ -f "$here/torch" ] ;;\nesac\n'
)


def packages(*uses):
    lines = [line for use in uses for line in (ROOT / f"tools/packages-{use}.txt").read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


class Bootstrap(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "clone")
        self.state = pathlib.Path(folder.name, "state")
        shutil.copytree(ROOT / "tools", self.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("requirements.txt", "requirements-bench.txt", "requirements-test.txt"):
            shutil.copy(ROOT / name, self.root)
        (self.state / "bin").mkdir(parents=True)
        for name, text in {**{f"bin/{name}": text for name, text in SCRIPTS.items()}, "python": PYTHON}.items():
            (self.state / name).write_text("#!/bin/bash\n" + text)
            (self.state / name).chmod(0o755)
        self.set_machine(installed=[])

    def set_machine(self, installed, apt_faults=0, pip_faults=0):
        (self.state / "installed").write_text("".join(f"{name}\n" for name in installed))
        (self.state / "apt_faults").write_text(str(apt_faults))
        (self.state / "pip_faults").write_text(str(pip_faults))

    def run_bootstrap(self, *uses, uid=0, **environment):
        """Returns the finished process; self.log is what it did to the machine."""
        (self.state / "log").write_text("")
        kept = {name: value for name, value in os.environ.items() if name not in ("Torch_DIR", "CMAKE_PREFIX_PATH", "SKIP_PACKAGES")}
        kept |= {"PATH": f"{self.state}/bin:{os.environ['PATH']}", "STATE": str(self.state), "FAKE_UID": str(uid), "RETRY_SECONDS": "0"}
        result = subprocess.run(
            [self.root / "tools/bootstrap", *uses], capture_output=True, text=True, check=False, env=kept | environment
        )
        self.log = (self.state / "log").read_text().splitlines()
        return result

    def test_root_installs_exactly_what_is_missing_and_the_second_run_nothing(self):
        self.set_machine(installed=packages("build")[:5])
        result = self.run_bootstrap("build", "test")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            self.log,
            [
                "apt-get update -qq",
                "apt-get install --yes --no-install-recommends " + " ".join(packages("build", "test")[5:]) + " -qq",
                "python3 -m venv .venv",
                "pip install",
                "python3 -m venv .venv-test",
                "pip install",
            ],
        )
        self.assertEqual(self.run_bootstrap("build", "test").returncode, 0)
        self.assertEqual(self.log, [])

    def test_without_root_prints_the_exact_list_and_the_command_and_exits_2(self):
        self.set_machine(installed=packages("build")[2:])
        result = self.run_bootstrap("build", "test", uid=1000)
        missing = packages("build")[:2] + packages("test")
        self.assertEqual(result.returncode, 2)
        self.assertEqual([line[4:] for line in result.stderr.splitlines() if line[:4] == "    "][:-1], missing)
        self.assertIn("apt-get install --yes --no-install-recommends " + " ".join(missing) + "\n", result.stderr)
        self.assertEqual(self.log, [])

    def test_without_root_nothing_is_asked_for_when_the_packages_are_there(self):
        self.set_machine(installed=packages("build"))
        self.assertEqual(self.run_bootstrap(uid=1000).returncode, 0)
        self.assertEqual(self.log, ["python3 -m venv .venv", "pip install"])

    def test_one_network_fault_is_survived(self):
        self.set_machine(installed=[], apt_faults=1, pip_faults=1)
        self.assertEqual(self.run_bootstrap().returncode, 0)
        self.assertEqual(sum(line.startswith("apt-get install") for line in self.log), 2)
        self.assertEqual(self.log[-2:], ["pip install", "pip install"])

    def test_pip_that_never_succeeds_is_a_user_error_and_leaves_no_stamp(self):
        self.set_machine(installed=packages("build"), pip_faults=9)
        result = self.run_bootstrap()
        self.assertEqual(result.returncode, 2)
        self.assertIn("could not be installed into .venv", result.stderr)
        self.assertFalse((self.root / ".venv/pharos.stamp").exists())

    def test_half_made_and_outdated_environments_are_completed(self):
        self.set_machine(installed=packages("build"))
        (self.root / ".venv/bin").mkdir(parents=True)  # made, but no Python in it
        self.assertEqual(self.run_bootstrap().returncode, 0)
        self.assertEqual(self.log, ["python3 -m venv .venv", "pip install"])
        (self.root / ".venv/pharos.stamp").unlink()  # interrupted in pip
        self.assertEqual(self.run_bootstrap().returncode, 0)
        self.assertEqual(self.log, ["pip install"])
        (self.root / "requirements.txt").write_text("torch==9.9.9\n")
        self.assertEqual(self.run_bootstrap().returncode, 0)
        self.assertEqual(self.log, ["pip install"])
        (self.root / ".venv/bin/python").unlink()  # broken later
        self.assertEqual(self.run_bootstrap().returncode, 0)
        self.assertEqual(self.log, ["python3 -m venv .venv", "pip install"])

    def test_a_given_libtorch_is_taken_instead_of_an_environment(self):
        self.set_machine(installed=packages("build"))
        torch = self.state / "share/cmake/Torch"
        torch.mkdir(parents=True)
        (torch / "TorchConfig.cmake").touch()
        for variables in (
            {"Torch_DIR": str(torch)},
            {"CMAKE_PREFIX_PATH": f"/nowhere:{self.state}"},
            {"CMAKE_PREFIX_PATH": f"/nowhere;{self.state}/share/cmake"},
        ):
            with self.subTest(variables):
                self.assertEqual(self.run_bootstrap(**variables).returncode, 0)
                self.assertEqual(self.log, [])
        result = self.run_bootstrap(Torch_DIR="/nowhere")
        self.assertEqual(result.returncode, 2)
        self.assertIn("Torch_DIR = /nowhere holds no TorchConfig.cmake", result.stderr)
        self.assertEqual(self.run_bootstrap(CMAKE_PREFIX_PATH="/nowhere").returncode, 0)
        self.assertEqual(self.log, ["python3 -m venv .venv", "pip install"])

    def test_unknown_use(self):
        result = self.run_bootstrap("everything")
        self.assertEqual(result.returncode, 2)
        self.assertIn("unknown use 'everything'", result.stderr)
        self.assertEqual(self.log, [])


if __name__ == "__main__":
    unittest.main()
