"""`pharos doctor` as a user runs it: one node, recorded ones, ranks on several nodes, a driver that hangs, a rank that never
comes. PHAROS names the program, FAKE_DRIVER a library that stands in for NVML, NCCL and libfabric (fake_driver.c)."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from free_ports import free_port
from pharos_program import PROGRAM, run

LOGS = pathlib.Path(__file__).resolve().parent.parent / "data" / "doctor"
FAKE_DRIVER = os.environ.get("FAKE_DRIVER", str(pathlib.Path(PROGRAM).parent / "tests/libfake_driver.so"))
FAST = ("--device", "cpu")
PATIENT = ("--timeout", "280", "--check-timeout", "120")  # a busy machine is no finding


def environment(**variables):
    """This process's, without what a scheduler or a user may have set, and with `variables`."""
    dropped = ("SLURM", "NCCL_", "FI_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "MOUNT", "FAKE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}


def place(rank, size, port, **variables):
    """Rank `rank` of `size`, each on a node of its own."""
    return environment(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=port, SLURMD_NODENAME=f"node-{rank}", **variables)


class DoctorTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pharos_doctor_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.processes = []
        self.addCleanup(self.end_processes)

    def end_processes(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def start(self, *arguments, env):
        process = subprocess.Popen([PROGRAM, "doctor", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=env)
        self.processes.append(process)
        return process

    def doctor(self, *arguments, code=0, **variables):
        """Findings of a run that must leave with `code`."""
        path = self.folder / "findings.json"
        path.unlink(missing_ok=True)
        patience = () if "--check-timeout" in arguments else PATIENT
        finished = run("doctor", *arguments, *patience, "--json", path, timeout=290, env=environment(**variables))
        self.assertEqual(finished.returncode, code, finished.stdout)
        report = json.loads(path.read_text())
        self.assertEqual(report["exit_code"], code)
        return report["findings"]

    def find(self, findings, check, subject=""):
        found = [one for one in findings if one["check"] == check and one["subject"] == subject]
        self.assertEqual(len(found), 1, f"{check} {subject} in {findings}")
        return found[0]

    def node(self, files):
        """A recorded node: files of /proc and /sys below a folder."""
        root = self.folder / "node"
        for path, text in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text + "\n")
        return root


class OneNode(DoctorTest):
    def test_every_check_says_something_and_json_agrees_with_the_table(self):
        finished = run("doctor", *FAST, *PATIENT, "--shared", self.folder, timeout=290, env=environment())
        listed = run("doctor", "--list").stdout.split("of the job")[0]
        names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
        self.assertGreater(len(names), 10)
        for name in names:
            self.assertRegex(finished.stdout, rf"(?m)^{name}\b", finished.stdout)
        self.assertNotIn("\033", finished.stdout)  # no terminal, no colours
        self.assertEqual(list(self.folder.iterdir()), [])
        printed = run("doctor", "--only", "cpu,gemm", *FAST, *PATIENT, "--json", "-", timeout=290, env=environment())
        report = json.loads(printed.stdout)
        self.assertEqual({one["check"] for one in report["findings"]}, {"cpu", "gemm"})
        self.assertGreater(self.find(report["findings"], "gemm", "cpu")["data"]["median"], 0)

    def test_no_driver_is_a_note_and_a_failure_where_gpus_are_expected(self):
        missing = self.folder / "no_such_library.so"
        empty = self.node({"proc/meminfo": ""})
        findings = self.doctor("--only", "gpu", "--system-root", empty, PHAROS_NVML=missing)
        self.assertEqual(self.find(findings, "gpu")["verdict"], "note")
        findings = self.doctor("--only", "gpu", "--system-root", empty, "--gpus", "8", code=2, PHAROS_NVML=missing)
        self.assertIn("no GPU driver", self.find(findings, "gpu")["value"])

    def test_the_driver_tells_of_its_devices(self):
        kernel_log = "4,1,1,-;NVRM: Xid (PCI:0000:9a:00): 79, pid=1, GPU has fallen off the bus."
        root = self.node({"dev/kmsg": kernel_log})
        options = ("--only", "gpu", "--system-root", root)
        findings = self.doctor(*options, "--gpus", "2", PHAROS_NVML=FAKE_DRIVER)
        self.assertEqual(self.find(findings, "gpu")["data"], {"count": 2, "driver": "570.86.15"})
        self.assertEqual(self.find(findings, "gpu", "1")["data"]["temperature_celsius"], 31)
        self.assertEqual(self.find(findings, "gpu", "Xid 79")["verdict"], "warning")
        findings = self.doctor(*options, code=2, PHAROS_NVML=FAKE_DRIVER, FAKE_NVML_ERRORS=4)
        self.assertEqual(self.find(findings, "gpu", "0")["verdict"], "ok")
        self.assertIn("4 uncorrected", self.find(findings, "gpu", "1")["value"])
        findings = self.doctor(*options, code=2, PHAROS_NVML=FAKE_DRIVER, FAKE_NVML_BROKEN=1)
        self.assertIn("version mismatch", self.find(findings, "gpu")["value"])

    def test_a_driver_that_hangs_is_a_verdict(self):
        findings = self.doctor("--only", "gpu,cpu", "--check-timeout", "1", code=2, PHAROS_NVML=FAKE_DRIVER, FAKE_NVML_HANG=1)
        self.assertIn("timed out", self.find(findings, "gpu")["value"])
        self.assertTrue(self.find(findings, "gpu")["data"]["timed_out"])
        self.assertNotEqual(self.find(findings, "cpu")["value"], "")

    def test_versions_of_libraries_that_are_loaded_at_run_time(self):
        for name in ("libnccl.so.2", "libfabric.so.1", "libnccl-net.so"):
            shutil.copy(FAKE_DRIVER, self.folder / name)  # the loader would take links for one and the same
        findings = self.doctor("--only", "versions", LD_LIBRARY_PATH=self.folder)
        self.assertEqual(self.find(findings, "versions", "NCCL")["data"]["version"], "2.29.3")
        self.assertEqual(self.find(findings, "versions", "libfabric")["data"]["version"], "2.1")
        self.assertEqual(self.find(findings, "versions", "NCCL plug-in")["data"]["path"], str(self.folder / "libnccl-net.so"))

    def test_a_silent_fall_back_to_sockets_is_found(self):
        device = "sys/class/infiniband/rdmap113s0"
        root = self.node({
            f"{device}/device/vendor": "0x1d0f", f"{device}/ports/1/state": "4: ACTIVE",
            f"{device}/ports/1/rate": "100 Gb/sec (4X EDR)", f"{device}/ports/1/link_layer": "Unspecified",
            "dev/infiniband/uverbs0": "", "sys/class/net/ens5/operstate": "up", "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so": "",
        })
        options = ("--only", "provider", "--system-root", root)
        value = self.find(self.doctor(*options, code=2), "provider")
        self.assertEqual(value["data"]["network"], "sockets")
        self.assertIn("LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib", value["remedy"])
        shutil.copy(FAKE_DRIVER, self.folder / "libnccl-net-ofi.so")  # the name that --profile sets
        self.doctor(*options, code=2, LD_LIBRARY_PATH=self.folder)
        planned = self.doctor(*options, "--profile", "efa", LD_LIBRARY_PATH=self.folder)
        self.assertEqual(self.find(planned, "provider")["data"]["network"], "libfabric with EFA")
        (self.folder / "libnccl-net.so").symlink_to(FAKE_DRIVER)
        good = self.doctor(*options, LD_LIBRARY_PATH=self.folder)
        self.assertEqual(self.find(good, "provider")["data"]["network"], "libfabric with EFA")
        other = self.doctor(*options, code=2, LD_LIBRARY_PATH=self.folder, FI_PROVIDER="tcp")
        self.assertIn("FI_PROVIDER=tcp", self.find(other, "provider")["value"])

    def test_logs(self):
        findings = self.doctor("--log", LOGS / "efa_gin.log", "--expect-gin")
        self.assertIn("type 2", self.find(findings, "log", "GIN")["value"])
        self.doctor("--log", LOGS / "silent_sockets.log", code=2)
        findings = self.doctor("--log", LOGS / "efa_gin.log", LOGS / "silent_sockets.log", code=2)
        self.assertEqual(self.find(findings, "log", "network")["data"]["networks"], {"Libfabric": 2, "Socket": 2})

    def test_image(self):
        table = self.folder / "versions.env"
        version = [one for one in self.doctor("--only", "versions") if one["subject"] == "libtorch"][0]["data"]["version"]
        table.write_text(f"TORCH_VERSION={version.split('+')[0]}\nNCCL_VERSION=2.29.3-1\n")
        (self.folder / "libnccl.so.2").symlink_to(FAKE_DRIVER)
        findings = self.doctor("--image", "--versions", table, LD_LIBRARY_PATH=self.folder)
        for part in ("TORCH_VERSION", "NCCL_VERSION", "libtorch", "recipes"):
            self.assertEqual(self.find(findings, "image", part)["verdict"], "ok", part)
        findings = self.doctor("--image", "--versions", table, code=2, LD_LIBRARY_PATH=self.folder, FAKE_NCCL_VERSION=22705)
        self.assertIn("2.27.5 is there", self.find(findings, "image", "NCCL_VERSION")["value"])

    def test_an_option_that_no_chosen_check_reads_is_a_note(self):
        findings = self.doctor("--only", "cpu,disk", "--gpus", "5", "--shared", self.folder, "--run-dir", self.folder, *FAST)
        noted = {one["subject"]: one["verdict"] for one in findings if one["check"] == "options"}
        self.assertEqual(noted, {name: "note" for name in ("--gpus", "--shared", "--device")})

    def test_mistakes_of_the_command_line(self):
        for words, message in (
            (("--only", "netwrk"), "Did you mean network"),
            (("--only", "pairs"), "need several ranks"),
            (("--log", str(self.folder / "none")), "none"),
            (("--profile", "rocket"), "no network profile 'rocket'"),
            (("--timeout", "0"), "whole number"),
            (("--expect-gin",), "--log"),
            (("--json", ""), "empty"),
            (("--run-dir", ""), "empty"),
            (("--only", "shared", "--shared", ""), "empty"),
        ):
            finished = run("doctor", *words, env=environment())
            self.assertEqual(finished.returncode, 2, finished.stdout)
            self.assertIn(message, finished.stdout)


class SeveralRanks(DoctorTest):
    def test_ranks_of_one_machine(self):
        shared = self.folder / "shared"
        shared.mkdir()
        findings = self.doctor("--nproc", "2", "--only", "gemm,ranks,same,outliers,clocks,token,collectives,pairs",
                               "--shared", shared, *FAST)
        self.assertIn("2 ranks on 1 node", self.find(findings, "ranks")["value"])
        for rank in (0, 1):
            self.find(findings, "gemm", f"cpu (rank {rank})")
        for kind in ("all-reduce", "all-gather", "all-to-all"):
            self.assertGreater(self.find(findings, "collectives", kind)["data"]["bus_gigabytes_per_s"], 0)
        self.assertEqual(len(self.find(findings, "pairs")["data"]["values"]), 2)
        self.assertEqual(len(self.find(findings, "outliers", "gemm")["data"]["values"]), 2)
        self.assertEqual(self.find(findings, "token")["verdict"], "ok")
        self.assertEqual(list(shared.iterdir()), [])

    def test_ranks_of_one_machine_are_interrupted(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start("--nproc", "2", *FAST, env=environment())
            ranks = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while len(ranks.read_text().split()) < 2 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            output = process.communicate(timeout=100)[0]
            self.assertEqual(process.returncode, 128 + number, output)
            self.assertIn(f"interrupted by {number.name}", output)

    def test_nodes_that_differ(self):
        """Two nodes with another NCCL each, whose folder of the same name is not the same one."""
        port, report = free_port(), self.folder / "report.json"
        (self.folder / "libnccl.so.2").symlink_to(FAKE_DRIVER)
        for name in ("a", "b"):
            (self.folder / name).mkdir()
        ranks = []
        for rank, folder, version in ((0, "a", 22903), (1, "b", 22705)):
            env = place(rank, 2, port, LD_LIBRARY_PATH=self.folder, FAKE_NCCL_VERSION=version)
            ranks.append(self.start("--only", "versions,ranks,same,clocks,token", "--shared", str(self.folder / folder), *FAST,
                                    *(("--json", str(report)) if rank == 0 else ()), env=env))
        outputs = [process.communicate(timeout=60)[0] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [2, 2], outputs)
        self.assertEqual(outputs[1], "")  # rank 0 speaks for all
        findings = json.loads(report.read_text())["findings"]
        self.assertEqual(self.find(findings, "same", "NCCL")["value"], "2.27.5 on node-1; 2.29.3 on node-0")
        clock = self.find(findings, "clocks", "node-1")["data"]
        self.assertLessEqual(abs(clock["offset_ns"]), clock["error_ns"])  # both have the clock of this machine
        self.assertIn("not there", self.find(findings, "token", "node-1")["value"])
        self.assertEqual({one["host"] for one in findings if one["check"] == "versions"}, {"node-0", "node-1"})

    def test_a_rank_that_never_comes_is_named_and_the_node_part_is_shown(self):
        port = free_port()
        finished = run("doctor", "--only", "cpu,ranks", "--arrival-timeout", "1", env=place(0, 2, port))
        self.assertEqual(finished.returncode, 2, finished.stdout)
        self.assertRegex(finished.stdout, r"(?m)^cpu ")
        self.assertRegex(finished.stdout, r"1 of 2 ranks have not come: 1\.")

    def test_a_rank_without_its_master_shows_its_node(self):
        finished = run("doctor", "--only", "cpu,ranks", "--arrival-timeout", "1", env=place(1, 2, free_port()))
        self.assertEqual(finished.returncode, 2, finished.stdout)
        self.assertIn("node node-1", finished.stdout)
        self.assertRegex(finished.stdout, r"(?m)^cpu ")

    def test_a_rank_that_stands_still_is_named(self):
        port = free_port()
        options = ("--only", "cpu,ranks", "--arrival-timeout", "2", *FAST)
        self.start(*options, env=place(1, 2, port)).send_signal(signal.SIGSTOP)
        finished = run("doctor", *options, env=place(0, 2, port))
        self.assertEqual(finished.returncode, 2, finished.stdout)
        self.assertIn("have not come: 1", finished.stdout)

    def test_the_time_ends_when_a_rank_does_not_answer(self):
        """Rank 1 has met rank 0 and then does not take part in what rank 0 waits for."""
        port, report = free_port(), self.folder / "report.json"
        second = self.start("--only", "ranks", "--timeout", "6", *FAST, env=place(1, 2, port))
        first = self.start("--only", "cpu,ranks,clocks", "--timeout", "6", *FAST, "--json", str(report), env=place(0, 2, port))
        output = first.communicate(timeout=100)[0]
        self.assertEqual(first.returncode, 2, output)
        findings = json.loads(report.read_text())["findings"]
        self.assertIn("failure", {one["verdict"] for one in findings if one["check"] == "ranks"})
        self.assertNotEqual(self.find(findings, "cpu")["value"], "")
        second.communicate(timeout=100)
        self.assertEqual(second.returncode, 2)


if __name__ == "__main__":
    unittest.main()
