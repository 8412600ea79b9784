"""Experts, multi-token prediction and frozen weights in `pharos train`: what is told, and that a run goes on in another layout
with other weights frozen."""

import json
import math
import re
import shutil
import unittest

from pharos_program import RECIPE, ProgramTest, losses, metrics, run

EXPERTS = [
    "train.rampup_batch_size=null",
    "model.num_moe_experts=4",
    "model.moe_router_score_function=sigmoid",
    "model.moe_router_enable_expert_bias=true",
    "model.moe_router_load_balancing_type=[seq_aux_loss,aux_loss]",
    "model.moe_aux_loss_coeff=[1e-2,1e-3]",
    "model.share_embeddings_and_output_weights=false",
    "model.moe_z_loss_coeff=1e-3",
    "model.moe_token_dispatcher_type=alltoall",
    "model.mtp_num_layers=1",
]
LOSSES = ["seq_load_balancing_loss", "load_balancing_loss", "z_loss", "mtp_1_loss"]


class Experts(ProgramTest):
    def go(self, folder, *overrides):
        return run("train", RECIPE, f"data={self.data}", *EXPERTS, "--run-dir", folder, *overrides, timeout=300)

    def test_losses_and_loads_are_told(self):
        folder = self.folder / "told"
        self.assert_exit(self.go(folder, "train.train_iters=10", "model.moe_per_layer_logging=true", "optimizer.lr_scales=['*.router.*=0.5']"), 0)
        log = (folder / "log.txt").read_text()
        number = r"\d\.\d{6}E[-+]\d\d"
        line = rf"lm loss: {number} \| seq_load_balancing_loss: {number} \| load_balancing_loss: {number} \| z_loss: {number} \| mtp_1 loss: {number} \| loss scale"
        self.assertEqual(len(re.findall(line, log)), 3, log)
        self.assertEqual(len(re.findall(r"^ experts \| load max/mean: \d\.\d\d \(layer \d\) \| dead: \d+ \| entropy: [01]\.\d{3} ", log, re.MULTILINE)), 3, log)
        self.assertIn(" experts of layer   1 | load max/mean: ", log)
        steps = [item for item in metrics(folder) if "loss" in item]
        for item in steps:
            for name in LOSSES:
                self.assertGreater(item[name], 0, name)
            self.assertEqual("expert_layers" in item, item["step"] in (1, 5, 10))
        # Perfect balance is 1, and a model that knows nothing is near ln(256) for every depth.
        self.assertLess(abs(steps[0]["seq_load_balancing_loss"] - 1), 1)
        self.assertLess(abs(steps[0]["mtp_1_loss"] - math.log(256)), 1)
        self.assertLess(steps[-1]["mtp_1_loss"], steps[0]["mtp_1_loss"])

    def test_moves_between_layouts(self):
        """One rank, then experts over two, then experts and optimizer states over four, against one rank that never stops."""
        reference, moving = self.folder / "reference", self.folder / "moving"
        self.assert_exit(self.go(reference, "train.train_iters=12"), 0)
        ep2 = ["--nproc", 2, "model.expert_model_parallel_size=2"]
        zero = ["--nproc", 4, "model.expert_model_parallel_size=2", "ddp.data_parallel_sharding_strategy=optim_grads", "train.micro_batch_size=2"]
        for end, overrides in ((4, []), (8, ep2), (12, zero)):
            options = [*overrides, "train.train_iters=12"]
            if end < 12:
                options.append(f"train.exit_interval={end}")
            if (moving / "run.yaml").exists():
                options.append("--resume")
            self.assert_exit(self.go(moving, *options), 0 if end == 12 else 4)
        expected, found = losses(reference), losses(moving)
        self.assertEqual(sorted(found), list(range(1, 13)))
        for step, loss in expected.items():
            self.assertLessEqual(abs(found[step] - loss) / loss, 1e-4 if step > 8 else 1e-5, f"step {step}")

    def test_frozen_weights_stay_and_may_change(self):
        folder = self.folder / "frozen"
        first = self.go(folder, "train.train_iters=8", "train.exit_interval=4", "optimizer.freeze=['embedding.*','*.mlp.experts.*']")
        self.assert_exit(first, 4)
        self.assertIn("parameters are trained, the others are frozen", first.stdout)
        manifest = json.loads((folder / "checkpoints/iter_0000004/manifest.json").read_text())
        names = set(manifest["tensors"]) if isinstance(manifest["tensors"], dict) else {tensor["name"] for tensor in manifest["tensors"]}
        self.assertIn("embedding.word_embeddings.weight", names)
        self.assertNotIn("exp_avg/embedding.word_embeddings.weight", names)
        self.assertFalse([name for name in names if name.endswith("expert_bias") and name.startswith("exp_avg")])
        staged = self.folder / "staged"
        shutil.copytree(folder, staged)
        second = self.go(folder, "train.train_iters=8", "--resume", "optimizer.freeze=['output_layer.*']", "--nproc", 2, "model.expert_model_parallel_size=2")
        self.assert_exit(second, 0)
        self.assertIn("begin with fresh state", second.stdout)
        self.assertIn("not trained now is left out: output_layer.weight", second.stdout)

        # Two stages, of which the first trains nothing: it has the last word on what is told and saved.
        third = self.go(staged, "train.train_iters=8", "train.exit_interval=6", "--resume", "optimizer.freeze=['embedding.*','decoder.layers.0.*']", "--nproc", 2, "model.pipeline_model_parallel_size=2")
        self.assert_exit(third, 4)
        self.assertRegex(third.stdout, r"has no exp_avg, exp_avg_sq of \d+ weights: .*decoder\.layers\.1\.mlp\.experts")
        state = json.loads((staged / "checkpoints/iter_0000006/train_state.json").read_text())["optimizer"]
        self.assertEqual(state["step"], 6)
        self.assertIn("decoder.layers.1.mlp.experts.linear_fc2.weight", state["started_at"])
        self.assertEqual(set(state["started_at"].values()), {4})

    def test_patterns_that_fit_nothing(self):
        for setting in ("optimizer.freeze=['decoder.layer.*']", "optimizer.lr_scales=['decoder.layer.*=2']"):
            finished = self.go(self.folder / "nothing", setting)
            self.assert_exit(finished, 2)
            self.assertIn("'decoder.layer.*', which fits no weight of the model", finished.stdout)
        finished = self.go(self.folder / "nothing", "optimizer.freeze=['*']")
        self.assert_exit(finished, 2)
        self.assertIn("leaves nothing to train", finished.stdout)


if __name__ == "__main__":
    unittest.main()
