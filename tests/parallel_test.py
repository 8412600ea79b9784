"""Several ranks are real processes: the same model as one rank in every layout, checkpoints that move between layouts, one
verdict for all."""

import json
import os
import signal
import subprocess
import time
import unittest

from free_ports import free_port
from pharos_program import PROGRAM, RECIPE, ProgramTest, losses, run

FIXED_BATCH = "train.rampup_batch_size=null"
LOSS_TOLERANCE = 2e-6  # relative, fp32: the same sums in another order


class Parity(ProgramTest):
    def parity(self, *arguments, **options):
        finished = subprocess.run(
            [PROGRAM, "parity", str(RECIPE), f"data={self.data}", FIXED_BATCH, "--json", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False, **options,
        )
        return finished.returncode, finished

    def test_layouts_train_the_same_model(self):
        """Every layout of one stage and whole sequences, with dropout, four microbatches or more on one rank."""
        shards = ["", "-overlap", "-zero1", "-zero2", "-zero3"]
        cells = [f"dp{ranks}{shard}" for ranks in (2, 4) for shard in shards]
        cells += [f"tp{ranks}{sequence}" for ranks in (2, 4) for sequence in ("", "-sp")]
        cells += [f"tp2{sequence}-dp2{shard}" for shard in shards if shard != "-overlap" for sequence in ("", "-sp")]
        cells += ["tp4-sp-dp2-zero3", "tp2-sp-dp4-zero1", "dp8-zero2"]
        code, finished = self.parity("train.micro_batch_size=1", "--cells", ",".join(cells))
        self.assertEqual(code, 0, finished.stdout + finished.stderr)
        found = {cell["name"]: cell for cell in json.loads(finished.stdout)["cells"]}
        self.assertEqual(sorted(found), sorted([*cells, "one-rank"]))
        self.assertEqual({cell["verdict"] for name, cell in found.items() if name != "one-rank"}, {"same"}, finished.stdout)
        self.assertEqual(len(found["one-rank"]["losses"]), 20)
        self.assertGreater(found["one-rank"]["losses"][0] - found["one-rank"]["losses"][-1], 0.5, "nothing was learned")
        for name, cell in found.items():
            if name != "one-rank":
                self.assertLessEqual(cell["loss"], LOSS_TOLERANCE, name)

    def test_broken_layout_is_caught(self):
        """The same program with one gradient sum left out (tests/CMakeLists.txt)."""
        finished = subprocess.run(
            [os.environ["PHAROS_BROKEN"], "parity", str(RECIPE), f"data={self.data}", FIXED_BATCH, "--json", "--cells", "tp2-sp,dp2", "--steps", "5"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )
        self.assertEqual(finished.returncode, 1, finished.stdout + finished.stderr)
        verdicts = {cell["name"]: cell["verdict"] for cell in json.loads(finished.stdout)["cells"]}
        self.assertEqual(verdicts, {"one-rank": "reference", "tp2-sp": "DIFFERENT", "dp2": "same"})

    def test_layout_that_cannot_be_is_said(self):
        code, finished = self.parity("--cells", "dp8-zero2", "--steps", "2")
        self.assertEqual(code, 1)
        cell = json.loads(finished.stdout)["cells"][1]
        self.assertEqual(cell["verdict"], "skipped")
        self.assertIn("global batch size (8)", cell["reason"])


class Layouts(ProgramTest):
    """A run that changes its layout at every resume, against one that never stops."""

    def test_checkpoint_moves_between_layouts(self):
        layouts = [
            (2, 10, ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]),
            (4, 15, ["ddp.data_parallel_sharding_strategy=optim_grads_params", "ddp.overlap_param_gather=true", "ddp.overlap_grad_reduce=true"]),
            (4, 20, ["model.tensor_model_parallel_size=2", "ddp.use_distributed_optimizer=true"]),
            (1, 25, []),
            (2, 30, ["ddp.data_parallel_sharding_strategy=optim_grads"]),
        ]
        self.assert_moves_between_layouts(layouts, FIXED_BATCH, tolerance=LOSS_TOLERANCE)


class Spans(ProgramTest):
    def test_communication_of_every_rank(self):
        folder = self.folder / "spans"
        command = ["train", RECIPE, f"data={self.data}", FIXED_BATCH, "train.train_iters=3", "telemetry.span_groups=per_step"]
        command += ["ddp.use_distributed_optimizer=true", "model.tensor_model_parallel_size=2", "--run-dir", folder, "--nproc", 4]
        self.assert_exit(run(*command), 0)
        spans = [json.loads(line) for line in run("trace", "dump", folder).stdout.splitlines() if line.startswith("{")]
        self.assertEqual({span["resource"]["attributes"]["dl.rank"] for span in spans}, {0, 1, 2, 3})
        by_id = {span["context"]["span_id"]: span for span in spans}
        parents = {}
        for span in spans:
            parent = by_id.get(span["parent_id"])
            parents.setdefault(span["name"], set()).add(parent["name"] if parent else None)
        self.assertEqual(parents["megatron.grad_sync.start"], {"megatron.train.iteration.forward_backward"})
        self.assertEqual(parents["megatron.grad_sync.finish"], {"megatron.train.iteration.forward_backward"})
        for name in ("megatron.comm.all_reduce", "megatron.comm.reduce_scatter", "megatron.comm.all_gather"):
            self.assertIn(name, parents)
        groups = {span["attributes"]["megatron.comm.group"] for span in spans if span["name"].startswith("megatron.comm.")}
        self.assertLessEqual({"dp", "tp", "world"}, groups)


class Verdicts(ProgramTest):
    def ranks(self, folder, *overrides, other=None, world_size=2):
        """Ranks started by hand, `other` given to the last one only; [(code, output)]."""
        port = free_port()
        processes = []
        for rank in range(world_size):
            environment = os.environ | {
                "RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }
            words = [PROGRAM, "train", str(RECIPE), f"data={self.data}", FIXED_BATCH, "--run-dir", str(folder), *overrides]
            if other and rank == world_size - 1:
                words.append(other)
            processes.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
            )
        return [(process.communicate(timeout=120)[0], process.returncode) for process in processes]

    def test_ranks_started_by_hand(self):
        folder = self.folder / "by_hand"
        for output, code in self.ranks(folder):
            self.assertEqual(code, 0, output)
        self.assertEqual(len(losses(folder)), 30)

    def test_rank_that_cannot_write_its_log_ends_all(self):
        folder = self.folder / "no_log"
        (folder / "rank_1.log").mkdir(parents=True)
        ended = self.ranks(folder)
        self.assertEqual([code for _, code in ended], [2, 2], ended)
        self.assertIn("Rank 1 failed: ", ended[0][0])
        self.assertIn("rank_1.log", ended[0][0])

    def test_another_configuration_is_named(self):
        folder = self.folder / "other"
        ended = self.ranks(folder, other="optimizer.lr=0.5")
        self.assertEqual([code for _, code in ended], [2, 2], ended)
        for output, _ in ended:
            self.assertIn("optimizer.lr is 0.003 on rank 0 and 0.5", output)
        self.assertFalse((folder / "run.yaml").exists())

    def test_signal_saves_on_all_ranks(self):
        folder = self.folder / "signalled"
        started = subprocess.Popen(
            [PROGRAM, "train", str(RECIPE), f"data={self.data}", FIXED_BATCH, "--run-dir", str(folder), "--nproc", "2", "train.train_iters=100000"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        path = folder / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (path.exists() and '"step":3' in path.read_text()):
            time.sleep(0.02)
        started.send_signal(signal.SIGTERM)
        output = started.communicate(timeout=60)[0]
        self.assertEqual(started.returncode, 4, output)
        last = max(losses(folder))
        tracker = (folder / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip()
        self.assertEqual(int(tracker), last)
        self.assertTrue((folder / "rank_1.log").exists())

    def test_loss_that_is_not_finite_ends_all_ranks(self):
        folder = self.folder / "infinite"
        finished = run("train", RECIPE, f"data={self.data}", FIXED_BATCH, "--run-dir", folder, "--nproc", "2", "optimizer.lr=1e30", "optimizer.clip_grad=0", "scheduler.lr_warmup_iters=0", "optimizer.min_lr=0")
        self.assertEqual(finished.returncode, 3, finished.stdout)
        self.assertIn("iteration", finished.stdout)


if __name__ == "__main__":
    unittest.main()
