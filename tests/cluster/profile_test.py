"""Profiling windows and network counters of `pharos train` as a process.

FAKE_CUDA names a folder with stand-ins of libcudart, libnvToolsExt and libnvidia-ml that write their calls down (tests/cluster/fake_cuda).
"""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from pharos_program import PROGRAM, RECIPE, ProgramTest, losses, metrics, run

FAKE_CUDA = os.environ["FAKE_CUDA"]
# Short, and no evaluation.
SHORT = ("train.train_iters=6", "validation.eval_iters=0", "checkpoint.save_interval=100", "train.rampup_batch_size=null")


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.005)
    return found


def cuda_runtime_is_here():
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        with contextlib.suppress(OSError):
            return bool(ctypes.CDLL(name))
    return False


class Window(ProgramTest):
    def calls_path(self, folder, rank=0):
        return pathlib.Path(f"{folder}.calls.{rank}")

    def environment(self, folder, **more):
        return {
            **os.environ,
            "LD_LIBRARY_PATH": FAKE_CUDA,
            "FAKE_CUDA_CALLS": f"{folder}.calls",
            "FAKE_CUDA_METRICS": f"{folder}/metrics.jsonl",
            **more,
        }

    def profiled(self, folder, *overrides, start=2, end=4, **environment):
        return self.train(
            folder,
            *SHORT,
            "profiling.use_nsys_profiler=true",
            f"profiling.profile_step_start={start}",
            f"profiling.profile_step_end={end}",
            *overrides,
            env=self.environment(folder, **environment),
        )

    def calls(self, folder, rank=0):
        path = self.calls_path(folder, rank)
        return path.read_text().splitlines() if path.exists() else []

    def window_calls(self, folder, rank=0):
        return [call for call in self.calls(folder, rank) if call.startswith(("start", "stop"))]

    def test_captures_the_steps_of_the_window(self):
        folder = self.folder / "normal"
        finished = self.profiled(folder, "profiling.nvtx_ranges=true", "profiling.record_shapes=true", "telemetry.span_groups=per_step")
        self.assert_exit(finished, 0)
        calls = self.calls(folder)
        # The calls come when exactly the steps before the window, and those of it, are in metrics.jsonl.
        self.assertEqual(calls[0], "start after 2 steps")
        self.assertEqual(calls[-1], "stop after 4 steps")
        self.assertEqual(self.window_calls(folder), [calls[0], calls[-1]])
        self.assertEqual([call for call in calls if "training_step" in call], ["push training_step_3", "push training_step_4"])
        for name in ("megatron.train.iteration", "megatron.train.iteration_report"):
            self.assertEqual(calls.count(f"push {name}"), 2, name)
        depth = 0
        for call in calls[1:-1]:
            depth += 1 if call.startswith("push") else -1
            self.assertGreaterEqual(depth, 0)
        self.assertEqual(depth, 0)
        products = [call for call in calls if call.startswith("push aten::mm") and "sizes = [[" in call]
        self.assertTrue(products, "no product of matrices with its shapes")
        self.assertIn("profiling: capture of steps 3 to 4 begins", finished.stdout)
        # Looking changes nothing.
        plain = self.folder / "plain"
        self.assert_exit(self.train(plain, *SHORT), 0)
        self.assertEqual(losses(plain), losses(folder))

    def test_only_the_window_without_nvtx_ranges(self):
        folder = self.folder / "operators"
        self.assert_exit(self.profiled(folder, start=0, end=1), 0)
        pushed = [call for call in self.calls(folder) if call.startswith("push")]
        self.assertIn("push aten::copy_", pushed)
        self.assertFalse([call for call in pushed if "megatron." in call or "training_step" in call])
        self.assertFalse([call for call in pushed if "sizes = " in call])
        self.assertEqual(self.window_calls(folder), ["start after 0 steps", "stop after 1 steps"])

    def test_early_exit_then_resume_inside_then_beyond(self):
        folder = self.folder / "resumed"
        # Leaves inside the window: it is closed there.
        finished = self.profiled(folder, "train.exit_interval=3", start=2, end=5)
        self.assert_exit(finished, 4)
        self.assertEqual(self.window_calls(folder), ["start after 2 steps", "stop after 3 steps"])
        self.assertIn("capture ends early, after step 3 of 5", finished.stdout)
        self.calls_path(folder).unlink()
        # Resumes inside: it captures the rest, from the first step on.
        self.assert_exit(self.profiled(folder, "--resume", start=2, end=5), 0)
        self.assertEqual(self.window_calls(folder), ["start after 3 steps", "stop after 5 steps"])
        self.calls_path(folder).unlink()
        # Resumes beyond: never.
        finished = self.profiled(folder, "--resume", "train.train_iters=8", "scheduler.override_opt_param_scheduler=true", start=2, end=5)
        self.assert_exit(finished, 0)
        self.assertEqual(self.calls(folder), [])
        self.assertEqual(finished.stdout.count("nothing is captured, the run continues at step 6"), 1)

    def test_a_signal_closes_it(self):
        folder = self.folder / "signal"
        overrides = ("train.train_iters=100000", "profiling.use_nsys_profiler=true", "profiling.profile_step_start=2")
        process = subprocess.Popen(
            [PROGRAM, "train", RECIPE, f"data={self.data}", "--run-dir", folder, *SHORT[1:], *overrides, "profiling.profile_step_end=100000"],
            env=self.environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            wait_until(lambda: self.window_calls(folder), "the window")
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4, output)
        last = max(losses(folder))
        self.assertEqual(self.window_calls(folder), ["start after 2 steps", f"stop after {last} steps"])

    def test_a_failure_closes_it(self):
        folder = self.folder / "failure"
        finished = self.profiled(folder, "optimizer.lr=1e30", "optimizer.min_lr=1e29", "scheduler.lr_warmup_iters=0", start=0, end=6)
        self.assert_exit(finished, 3)
        calls = self.window_calls(folder)
        self.assertEqual(calls[:1], ["start after 0 steps"], finished.stdout)
        self.assertEqual(len(calls), 2, calls)
        self.assertEqual(self.calls(folder)[-1], calls[1])

    def test_only_the_ranks_that_were_named(self):
        folder = self.folder / "ranks"
        finished = self.profiled(folder, "--nproc", "2", "profiling.profile_ranks=[1]", "profiling.nvtx_ranges=true", start=1, end=3)
        self.assert_exit(finished, 0)
        self.assertEqual(self.calls(folder, 0), [])
        kept = [call.split()[0] if "steps" in call else call for call in self.calls(folder, 1) if "step" in call.split(".")[0]]
        self.assertEqual(kept, ["start", "push training_step_2", "push training_step_3", "stop"])

    def test_without_cuda_the_run_goes_on(self):
        folder = self.folder / "without"
        finished = self.train(folder, *SHORT, "profiling.use_nsys_profiler=true", "profiling.profile_step_start=2", "profiling.profile_step_end=2", "profiling.profile_ranks=[0,5]")
        self.assert_exit(finished, 0)
        self.assertIn("the window is empty, nothing is captured", finished.stdout)
        self.assertIn("profiling.profile_ranks names rank 5; the job has ranks 0 to 0.", finished.stdout)
        if cuda_runtime_is_here():
            self.skipTest("this machine has a CUDA runtime")
        folder = self.folder / "without_library"
        finished = self.train(folder, *SHORT, "profiling.use_nsys_profiler=true", "profiling.profile_step_start=2", "profiling.profile_step_end=4")
        self.assert_exit(finished, 0)
        self.assertEqual(finished.stdout.count("profiling.use_nsys_profiler has no effect: there is no CUDA runtime (libcudart was not found)"), 1)
        self.assertEqual(max(losses(folder)), 6)

    def test_a_runtime_without_a_device(self):
        folder = self.folder / "no_device"
        finished = self.profiled(folder, FAKE_CUDA_FAILS="1")
        self.assert_exit(finished, 0)
        self.assertIn("no profile is captured: cudaProfilerStart failed: no CUDA-capable device is detected (100)", finished.stdout)
        self.assertEqual(self.window_calls(folder), ["start after 2 steps"])


class Tree:
    """A folder of counters; files change by renaming, so a reader sees the old value or the new one."""

    def __init__(self, root):
        self.root = root

    def write(self, path, value):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name("being_written")
        new.write_text(f"{value}\n")
        new.rename(target)


class Counters(ProgramTest):
    EFA = "class/infiniband/rdmap16s27/ports/1/hw_counters"
    MLX5 = "class/infiniband/mlx5_0/ports/1/counters"

    @contextlib.contextmanager
    def running(self, folder, root, *overrides, **environment):
        log = open(f"{folder}.out", "w+")
        with log, subprocess.Popen(
            [PROGRAM, "train", RECIPE, f"data={self.data}", "--run-dir", folder, *SHORT[1:], "train.train_iters=100000"]
            + ["profiling.network_counters=true", "profiling.network_counters_hz=50", f"profiling.network_counters_root={root}", *overrides],
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                wait_until(lambda: "readings a second" in pathlib.Path(log.name).read_text(), "the first reading")
                yield
                last = max(losses(folder), default=0)
                wait_until(lambda: max(losses(folder), default=0) >= last + 2, "two more steps")
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
            finally:
                process.kill()
            log.seek(0)
            self.output = log.read()
            self.assertEqual(process.returncode, 4, self.output[-3000:])

    def test_totals_are_what_the_devices_counted(self):
        folder, tree, nvlink = self.folder / "run", Tree(self.folder / "sys"), self.folder / "nvlink"
        values = {f"{self.EFA}/tx_bytes": 1000, f"{self.EFA}/rx_bytes": 5000, f"{self.EFA}/retrans_timeout_events": 3,
                  f"{self.MLX5}/port_xmit_data": 2**32 - 500, "class/net/eth0/statistics/rx_bytes": 77}
        for path, value in values.items():
            tree.write(path, value)
        nvlink.write_text("100 200")
        telemetry = ("telemetry.enabled=true", "telemetry.exporter=file")
        with self.running(folder, tree.root, *telemetry, LD_LIBRARY_PATH=FAKE_CUDA, FAKE_NVLINK=str(nvlink)):
            for i in range(1, 21):
                tree.write(f"{self.EFA}/tx_bytes", 1000 + 10 * i)
                tree.write(f"{self.EFA}/rx_bytes", 5000 + 1000 * i)
                tree.write(f"{self.MLX5}/port_xmit_data", (2**32 - 500 + 50 * i) % 2**32)  # wraps at the tenth
                time.sleep(0.005)
            tree.write(f"{self.EFA}/retrans_timeout_events", 5)
            nvlink.with_suffix(".new").write_text("103 207")
            nvlink.with_suffix(".new").rename(nvlink)
            self.wait_for_reading_of(folder)
            # The device comes back from a reset.
            tree.write("class/net/eth0/statistics/rx_bytes", 7)
        expected = {
            "gpu0": {"transmit": 3 * 1024, "receive": 7 * 1024},
            "mlx5_0/1": {"transmit": 4 * 1000},
            "rdmap16s27/1": {"transmit": 200, "receive": 20000},
            "eth0": {"receive": 7},
        }
        lines = [line for line in metrics(folder) if "network_bytes" in line]
        self.assertEqual(self.sums(line["network_bytes"] for line in lines), expected)
        self.assertEqual(self.sums(line.get("network_events", {}) for line in lines), {"rdmap16s27/1": {"retrans_timeout_events": 2}})
        self.check_steps(folder, lines)
        self.check_ring(folder, expected)
        self.check_metrics(folder)
        self.assertIn("network counters: 4 ports (mlx5_0/1, rdmap16s27/1, eth0, gpu0), 50 readings a second", self.output)
        self.assertIn("rdmap16s27/1 retrans_timeout_events +2", (folder / "log.txt").read_text())
        self.assertIn("eth0 1 counters were reset", (folder / "log.txt").read_text())

    def wait_for_reading_of(self, folder):
        """Until the counters as they are now belong to a step: one that began later is in metrics.jsonl with its traffic."""
        last = max(losses(folder), default=0)
        wait_until(lambda: any("network_bytes" in line and line["step"] > last + 1 for line in self.whole_lines(folder)), "a later step")

    def whole_lines(self, folder):
        text = (folder / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def sums(self, parts):
        total = {}
        for part in parts:
            for port, counts in part.items():
                for label, count in counts.items():
                    total.setdefault(port, {}).setdefault(label, 0)
                    total[port][label] += count
        return total

    def check_steps(self, folder, lines):
        """Every step has its traffic, alone or with its neighbours, in order. (On a busy machine a reading is late: its line may
        follow one of a later step.)"""
        covered = []
        for line in lines:
            covered += range(line.get("network_first_step", line["step"]), line["step"] + 1)
            self.assertGreater(line["network_seconds"], 0)
        self.assertEqual(covered, sorted(losses(folder)))

    def check_ring(self, folder, expected):
        finished = run("trace", "dump", folder / "trace/rank_0.ring")
        self.assert_exit(finished, 0)
        found = {}
        for line in finished.stdout.splitlines():
            if not line.startswith('{"counters":"network"'):
                continue
            attributes = json.loads(line)["attributes"]
            for i, port in enumerate(attributes["network.ports"]):
                for label in expected[port]:
                    found.setdefault(port, {}).setdefault(label, 0)
                    found[port][label] += attributes[f"network.{label}_bytes"][i]
        self.assertEqual(found, expected)

    def check_metrics(self, folder):
        points = {}
        for line in (folder / "trace/metrics.jsonl").read_text().splitlines():
            for resource in json.loads(line)["resource_metrics"]:
                for scope in resource["scope_metrics"]:
                    for metric in scope["metrics"]:
                        for point in metric["data"]["data_points"]:
                            points[metric["name"], json.dumps(point["attributes"], sort_keys=True)] = point.get("value")
        efa = {"network.device": "rdmap16s27", "network.port": "1"}
        key = json.dumps({**efa, "network.direction": "receive"}, sort_keys=True)
        self.assertEqual(points["megatron.network.bytes", key], 20000)
        self.assertIn(("megatron.network.bytes_per_second", key), points)
        event = json.dumps({**efa, "network.event": "retrans_timeout_events"}, sort_keys=True)
        self.assertEqual(points["megatron.network.events", event], 2)

    def test_nothing_to_count_is_said_and_one_rank_of_a_node_samples(self):
        folder = self.folder / "nothing"
        finished = self.train(folder, *SHORT, "--nproc", "2", "profiling.network_counters=true", f"profiling.network_counters_root={self.folder}/absent")
        self.assert_exit(finished, 0)
        self.assertIn(f"warning: network counters: '{self.folder}/absent' has no device whose counters are known", finished.stdout)
        self.assertIn("network counters: no NVLink, there is no NVML (libnvidia-ml.so.1)", finished.stdout)
        self.assertNotIn("network counters", (folder / "rank_1.log").read_text())
        self.assertNotIn("network, steps", (folder / "log.txt").read_text())
        self.assertFalse([line for line in metrics(folder) if "network_bytes" in line])

    def test_off_by_default(self):
        folder = self.folder / "off"
        finished = self.train(folder, *SHORT, f"profiling.network_counters_root={self.folder}")
        self.assert_exit(finished, 0)
        self.assertIn("profiling.network_counters_root: no effect without profiling.network_counters.", finished.stdout)
        self.assertFalse([line for line in metrics(folder) if "network_bytes" in line])


if __name__ == "__main__":
    unittest.main()
