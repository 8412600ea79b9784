"""The program on a CUDA device: the numbers of the CPU, a falling loss in every precision, resume, generation.

Registered only in builds with CUDA (preset cuda); where such a build finds no device, the test says so and fails.
"""

import json
import pathlib
import unittest

from pharos_program import ProgramTest, losses, run

FIXTURES = pathlib.Path(__file__).resolve().parent / "data/hf"
FAMILIES = ("gpt2", "gpt2_untied", "llama", "llama3_tied", "qwen2", "qwen3")
ON_GPU = "dist.device=cuda"


class Numerics(unittest.TestCase):
    """logits, loss, gradients and 20 optimizer steps of Hugging Face models, within the tolerances that hold on the CPU."""

    def test_hugging_face_oracles(self):
        for family in FAMILIES:
            with self.subTest(family=family):
                folder = FIXTURES / family
                finished = run("hf", "verify", folder, "--oracle", folder / "oracle.safetensors", "--device", "cuda", "--json")
                self.assertIn(finished.returncode, (0, 1), finished.stdout)
                report = json.loads(finished.stdout.splitlines()[-1])
                outside = [check for check in report["checks"] if not check["ok"]]
                self.assertEqual(outside, [])


class Training(ProgramTest):
    def train_ok(self, name, *overrides):
        run_folder = self.folder / name
        finished = self.train(run_folder, *overrides)
        self.assert_exit(finished, 0)
        return losses(run_folder)

    def test_losses_are_those_of_the_cpu(self):
        """Dropout on: masks come from counters, so they are the same on both devices. Rounding grows with the steps."""
        on_cpu = self.train_ok("cpu")
        on_gpu = self.train_ok("gpu", ON_GPU)
        self.assertEqual(sorted(on_cpu), sorted(on_gpu))
        for step, loss in on_cpu.items():
            self.assertLess(abs(on_gpu[step] - loss) / loss, 1e-4, f"step {step}")

    def test_half_precisions_learn(self):
        exact = self.train_ok("fp32", ON_GPU)
        for precision in ("bf16", "fp16"):
            with self.subTest(precision=precision):
                found = self.train_ok(precision, ON_GPU, f"mixed_precision={precision}_mixed")
                last = max(exact)
                self.assertLess(abs(found[last] - exact[last]) / exact[last], 0.03)

    def test_resume_gives_the_same_losses(self):
        whole = self.train_ok("whole", ON_GPU)
        run_folder = self.folder / "halves"
        self.assert_exit(self.train(run_folder, ON_GPU, "train.exit_interval=15"), 4)
        finished = self.train(run_folder, ON_GPU, "train.exit_interval=null", "--resume")
        self.assert_exit(finished, 0)
        resumed = losses(run_folder)
        for step in range(16, 31):
            self.assertLess(abs(resumed[step] - whole[step]) / whole[step], 1e-6, f"step {step}")

    def test_checkpoints_cross_devices(self):
        run_folder = self.folder / "crossing"
        self.assert_exit(self.train(run_folder, ON_GPU, "train.exit_interval=15"), 4)
        self.assert_exit(self.train(run_folder, "dist.device=cpu", "train.exit_interval=null", "--resume"), 0)
        whole = self.train_ok("crossing_reference")
        crossed = losses(run_folder)
        for step in range(16, 31):
            self.assertLess(abs(crossed[step] - whole[step]) / whole[step], 1e-4, f"step {step}")

    def test_generation(self):
        run_folder = self.folder / "generator"
        self.assert_exit(self.train(run_folder, ON_GPU), 0)
        arguments = ("generate", run_folder, "--prompt", "ab", "--max-tokens", "40", "--temperature", "0")
        finished = run(*arguments)
        self.assert_exit(finished, 0)
        self.assertGreater(len(finished.stdout), 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
