"""Pipelines and divided sequences are real processes: the same model as one rank under every schedule, checkpoints that
move between stages, spans and reports of all ranks, and a verdict that names stage, rank and microbatch."""

import json
import os
import subprocess
import unittest

from pharos_program import PROGRAM, RECIPE, ProgramTest, run

FIXED_BATCH = "train.rampup_batch_size=null"
LOSS_TOLERANCE = 2e-6  # relative, fp32: the same sums in another order


def stages(ranks, schedule="1f1b", *more):
    return [f"model.pipeline_model_parallel_size={ranks}", f"model.pipeline_schedule={schedule}", *more]


class Parity(ProgramTest):
    def assert_same(self, cells, *overrides):
        finished = subprocess.run(
            [PROGRAM, "parity", str(RECIPE), f"data={self.data}", FIXED_BATCH, "--json", "--cells", ",".join(cells), *overrides],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=800, check=False,
        )
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        found = {cell["name"]: cell for cell in json.loads(finished.stdout)["cells"]}
        reference = found.pop("one-rank")
        self.assertEqual(sorted(found), sorted(cells))
        self.assertEqual(len(reference["losses"]), 20)
        self.assertGreater(reference["losses"][0] - reference["losses"][-1], 0.5, "nothing was learned")
        for name, cell in found.items():
            self.assertEqual(cell["verdict"], "same", name)
            self.assertLessEqual(cell["loss"], LOSS_TOLERANCE, name)

    def test_every_schedule_trains_the_same_model(self):
        """Tied embeddings, dropout, eight microbatches."""
        cells = ["pp2-gpipe", "pp2-1f1b", "pp4-1f1b", "pp4-interleaved", "pp4-zb1p", "pp4-zbv", "pp4-dualpipev"]
        self.assert_same(cells, "model.num_layers=8", "train.micro_batch_size=1")

    def test_uneven_stages_untied_embeddings_odd_microbatches(self):
        cells = ["pp3-1f1b-uneven", "pp3-zb1p-uneven", "pp2-zbv", "pp2-dualpipev"]
        self.assert_same(
            cells, "model.num_layers=8", "train.micro_batch_size=1", "train.global_batch_size=7",
            "model.share_embeddings_and_output_weights=false",
        )

    def test_with_other_dimensions(self):
        cells = [
            "pp2-1f1b-dp2-overlap", "pp2-interleaved-dp2-zero3", "pp2-zbv-dp2-zero1", "pp2-zbv-dp2-zero2", "pp2-zb1p-dp2-zero3",
            "tp2-sp-pp2-zb1p", "tp2-sp-pp2-zbv-dp2-zero2", "tp2-sp-pp2-1f1b-dp2-zero1",
        ]
        self.assert_same(cells, "model.num_layers=4", "train.micro_batch_size=1")

    def test_recomputation_and_layout_text(self):
        self.assert_same(
            ["pp2-zb1p", "pp2-zbv"], "model.num_layers=4", "train.micro_batch_size=1", "model.recompute_granularity=full",
            "model.recompute_method=uniform", "model.recompute_num_layers=1",
        )

    def test_divided_sequences(self):
        cells = [
            "cp2", "cp4", "cp4-gather", "cp2-dp2-zero1", "cp2-dp2-zero3", "tp2-sp-cp2", "tp2-sp-cp2-gather", "cp2-pp2-1f1b", "tp2-sp-cp2-pp2-zb1p",
        ]
        self.assert_same(cells, "train.micro_batch_size=1")


class Layouts(ProgramTest):
    """A run that changes its layout at every resume, against one that never stops."""

    def test_checkpoint_moves_between_layouts(self):
        layouts = [
            (2, 5, stages(2, "zbv")),
            (4, 10, stages(4)),
            (4, 15, stages(2, "1f1b", "ddp.data_parallel_sharding_strategy=optim_grads_params")),
            (2, 20, ["model.context_parallel_size=2"]),
            (4, 25, stages(2, "interleaved", "model.virtual_pipeline_model_parallel_size=2", "ddp.use_distributed_optimizer=true")),
            (3, 30, stages(3, "1f1b", "model.pipeline_model_parallel_layout='E|t*3|t,L'")),
        ]
        self.assert_moves_between_layouts(layouts, FIXED_BATCH, "model.num_layers=4", "train.micro_batch_size=1", tolerance=LOSS_TOLERANCE)


class WhatIsLeftBehind(ProgramTest):
    def test_spans_reports_and_a_schedule_of_ones_own(self):
        schedule = self.folder / "mine.json"
        schedule.write_text(json.dumps({"name": "mine", "ranks": 2, "microbatches": 4, "actions": [
            "F0 F1 B0 W0 F2 B1 F3 B2 W1 B3 W2 W3", "F0 B0 F1 W0 B1 F2 W1 B2 F3 B3 W2 W3"]}))
        folder = self.folder / "run"
        finished = run(
            "train", RECIPE, f"data={self.data}", FIXED_BATCH, "train.train_iters=6", "logger.log_interval=2", "telemetry.span_groups='per_step,microbatch'",
            *stages(2, schedule), "--run-dir", folder, "--nproc", 2)
        self.assert_exit(finished, 0)
        self.assertIn("pipeline: bubble", finished.stdout)
        for kind in ("txt", "json", "svg"):
            self.assertGreater((folder / f"pipeline_report.{kind}").stat().st_size, 100)
        self.assertEqual(len((folder / "trace/pipeline_rank_00001.jsonl").read_text().splitlines()), 3)
        report = run("pipeline", "report", folder, "--format", "json")
        self.assert_exit(report, 0)
        plan = run("plan", RECIPE, f"data={self.data}", FIXED_BATCH, *stages(2, "zb1p"), "--world-size", 2, "--costs", folder)
        self.assert_exit(plan, 0)

        spans = [json.loads(line) for line in run("trace", "dump", folder).stdout.splitlines() if line.startswith("{")]
        passes = [span for span in spans if span["name"].startswith("megatron.microbatch.") and "megatron.pipeline.stage" in span["attributes"]]
        kinds = {(span["name"].split(".")[-1], span["attributes"]["megatron.pipeline.stage"], span["attributes"]["megatron.microbatch_id"]) for span in passes}
        self.assertEqual(kinds, {(name, stage, microbatch) for name in ("forward", "backward", "weight") for stage in (0, 1) for microbatch in range(4)})
        transfers = {(span["name"], span["attributes"]["megatron.pipeline.stage"]) for span in spans if span["name"].startswith("megatron.p2p.")}
        self.assertEqual(transfers, {("megatron.p2p.send_forward", 0), ("megatron.p2p.recv_forward", 1), ("megatron.p2p.send_backward", 1), ("megatron.p2p.recv_backward", 0)})
        links = {}
        for span in spans:
            if span["name"] == "megatron.train.iteration.forward_backward":
                links.setdefault(span["links"][0]["context"]["span_id"], set()).add(span["resource"]["attributes"]["dl.rank"])
        self.assertEqual(len(links), 6, "a step has one context")
        self.assertEqual({tuple(sorted(ranks)) for ranks in links.values()}, {(0, 1)}, "all ranks agree on it")

    def test_what_cannot_be_is_said(self):
        cases = [
            (stages(2, "1f2b"), "Did you mean 1f1b"),
            (stages(2, "dualpipev", "model.num_layers=4"), "dualpipev"),
            (stages(2, "zbv"), "model.num_layers"),
            (["model.context_parallel_size=2", "model.cp_comm_type=[a2a]"], "a2a"),
        ]
        for overrides, words in cases:
            finished = run("train", RECIPE, f"data={self.data}", "train.global_batch_size=4", FIXED_BATCH, *overrides, "--run-dir", self.folder / "never", "--nproc", 2)
            self.assert_exit(finished, 2)
            self.assertIn(words, finished.stdout)


class Faults(ProgramTest):
    """One stage of four fails at the forward of microbatch 3 in step 4."""

    def broken(self, kind):
        finished = subprocess.run(
            [os.environ["PHAROS_BROKEN"], "train", str(RECIPE), f"data={self.data}", FIXED_BATCH, "train.micro_batch_size=1", "model.num_layers=4",
             *stages(4), "dist.distributed_timeout_seconds_after_init=6", "--run-dir", str(self.folder / kind), "--nproc", "4"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
            env=os.environ | {"PHAROS_BREAK": f"{kind},2,3,4"},
        )
        self.assertNotEqual(finished.returncode, 0, finished.stdout)
        return finished.stdout

    def test_exception(self):
        output = self.broken("throw")
        self.assertIn("made to fail", output)
        self.assertIn("at the forward of microbatch 3 on stage 2 (pipeline rank 2, chunk 0) in step 4", output)
        self.assertIn("rank 2 left with code 3", output)

    def test_kill(self):
        output = self.broken("kill")
        self.assertIn("rank 2 was killed by SIGKILL", output)
        self.assertIn("at the forward of microbatch 3 on stage 2", output)

    def test_stop(self):
        output = self.broken("stop")
        self.assertIn("rank 2 held up the others", output)
        self.assertIn("at the forward of microbatch 3 on stage 2", output)


if __name__ == "__main__":
    unittest.main()
