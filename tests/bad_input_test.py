"""What a user does wrong: each is said with what, where and how to fix it, exit code 2, and nothing is left half done."""

import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import unittest

from pharos_program import PROGRAM, RECIPE, ProgramTest, run


class CommandLine(ProgramTest):
    def assert_refused(self, finished, *parts):
        self.assert_exit(finished, 2)
        for part in parts:
            self.assertIn(part, finished.stdout)
        self.assertNotIn("terminate called", finished.stdout)

    def test_sub_commands_and_words(self):
        self.assert_refused(run(), "pharos --help")
        self.assert_refused(run("trian"), "trian")
        self.assert_refused(run("train"), "pharos recipes list")
        self.assert_refused(run("train", "quickstrat"), "quickstart")
        self.assert_refused(run("train", RECIPE, "no_equals_sign"), "no_equals_sign")
        self.assert_refused(run("config", "explain", "train.train_iter"), "train.train_iters")

    def test_empty_words(self):
        for command, options in {
            ("train", RECIPE): ("--run-dir",),
            ("launch", RECIPE, "--dry-run"): ("--run-dir", "--array", "--sbatch-arg"),
            ("image", "build", "--name", "a", "--dry-run"): ("--output",),
        }.items():
            for option in options:
                with self.subTest(command=command, option=option):
                    self.assert_refused(run(*command, option, ""), f"{option}: the value is empty")
        self.assert_refused(run("launch", RECIPE, "--container-name", "a\nb", "--dry-run"), "control character")

    def test_fields(self):
        table = {
            "train.train_iter=5": ["train.train_iter", "train.train_iters"],
            "train.train_iters=abc": ["train.train_iters", "abc", "command line"],
            "train.train_iters=0": ["train.train_iters"],
            "train.train_iters=1,2": ["sweep"],
            "model.num_attention_heads=5": ["num_attention_heads"],
            "train.global_batch_size=7": ["is not divisible by micro batch size"],
            "optimizer.lr=-1": ["optimizer.lr"],
            "optimizer.exp_avg_dtype=bf16": ["precision-aware"],
            "model.num_moe_experts=1": ["model.moe_router_topk"],
            "model.tensor_model_parallel_size=2": ["tensor_model_parallel_size"],
            "model.activation_func=glue": ["gelu"],
            "dataset.split=[0,0,0]": ["split"],
            "model={": ["model={"],
            "telemetry.span_groups=setp": ["step"],
        }
        for override, parts in table.items():
            with self.subTest(override):
                folder = self.folder / "never"
                self.assert_refused(self.train(folder, override), *parts)
                self.assertFalse((folder / "run.yaml").exists())

    def test_device_that_is_not_there(self):
        for options in ((), ("--nproc", "2", "train.rampup_batch_size=null")):
            folder = self.folder / "never"
            finished = self.train(folder, "dist.device=cuda", *options, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
            self.assert_refused(finished, "dist.device = cuda, but", "dist.device=cpu")
            self.assertFalse(folder.exists())

    def test_all_problems_at_once(self):
        finished = self.train(self.folder / "never", "train.train_iters=abc", "optimizer.lrr=1", "model.hidden_size=-3")
        self.assert_refused(finished, "train.train_iters", "optimizer.lrr", "model.hidden_size")

    def test_recipes(self):
        broken = self.folder / "broken.yaml"
        table = {
            "config: {model: {num_layers: [}": "broken.yaml:1",
            "config:\n  model:\n    num_layer: 2\n": "broken.yaml:3",
            "base: broken\n": "broken",
            "- 1\n": "broken.yaml",
            "": "train.micro_batch_size is required",
            "config:\n  train:\n    train_iters: many\n": "broken.yaml:3",
        }
        for text, part in table.items():
            with self.subTest(text):
                broken.write_text(text)
                self.assert_refused(run("train", broken, "--run-dir", self.folder / "never"), part)

    def test_run_folders(self):
        self.assert_refused(self.train("/proc/pharos"), "/proc/pharos")
        self.assert_refused(self.train(self.data.with_suffix(".bin")), "tiny.bin")
        self.assert_refused(self.train(self.folder / "nothing", "--resume"), "no run to resume")
        folder = self.folder / "once"
        self.assert_exit(self.train(folder, "train.train_iters=2"), 0)
        self.assert_refused(self.train(folder, "train.train_iters=2"), "already holds a run", "--resume")

    def test_sizes_that_cannot_be(self):
        too_large = self.train(self.folder / "too_large", "train.micro_batch_size=100000000",
                               "train.global_batch_size=100000000", "train.rampup_batch_size=null")
        self.assert_refused(too_large, "of memory", "micro_batch_size", "pharos plan")
        self.assertFalse((self.folder / "too_large" / "run.yaml").exists())
        overflow = run("data", "prepare", self.folder / "text.txt", "--output", self.folder / "o", "--sequence-tokens", "9" * 20)
        self.assert_refused(overflow, "--sequence-tokens", "whole number")

    def test_sizes_beyond_all_machines(self):
        for override in ("model.hidden_size=2147483648", "model.num_layers=2000000000", "train.global_batch_size=9223372036854775806"):
            self.assert_refused(run("plan", RECIPE, override), override.split("=")[0])
        plan = run("plan", RECIPE, f"data={self.data}", "train.train_iters=1000000000", timeout=10)
        self.assert_exit(plan, 0)
        self.assert_refused(run("plan", RECIPE, "--world-size", "9223372036854775807"), "--world-size", "16777216")
        self.assert_exit(run("plan", RECIPE, f"data={self.data}", "checkpoint.save_interval=0"), 0)

    def test_lone_words(self):
        self.assert_refused(run("plan", RECIPE, "++"), "`++`", "++key=value")
        for ids in ("", "1,,2", "1,2,", "0x10", "9" * 20):
            self.assert_refused(run("generate", self.folder, "--prompt-ids", ids), "--prompt-ids" if ids else "prompt")

    def test_output_that_cannot_be_written(self):
        """A full disk behind standard output is an error, not a report that is cut short."""
        for arguments in (("recipes", "list"), ("plan", RECIPE, f"data={self.data}"), ("config", "fields"), ("--help",)):
            with open("/dev/full", "w") as full:
                finished = subprocess.run([PROGRAM, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, check=False)
            self.assertEqual(finished.returncode, 2, arguments)

    def test_reader_that_goes_away(self):
        """`pharos train … | head -1` trains to the end; log.txt has all lines."""
        folder = self.folder / "headless"
        command = f"{PROGRAM} train {RECIPE} data={self.data} train.train_iters=6 --run-dir {folder} | head -1"
        finished = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertIn("from iteration       6 to", (folder / "log.txt").read_text())

    def test_telemetry(self):
        for override in ("telemetry.span_groups=nonsense", "telemetry.exporter=nonsense", "telemetry.export_strategy=nonsense"):
            self.assert_refused(self.train(self.folder / "telemetry", override), "nonsense")
        self.assert_refused(run("plan", RECIPE, "telemetry.span_groups=nonsense"), "nonsense", "per_step")
        self.assert_refused(self.train(self.folder / "telemetry", "--otel-span-groups", "steps"), "steps", "step")

    def test_empty_run_yaml(self):
        folder = self.folder / "emptied"
        folder.mkdir()
        (folder / "run.yaml").write_text("")
        resume = ("train", "--run-dir", folder, "--resume")
        self.assert_refused(run(*resume), "no run began there", "run.yaml is empty", "without --resume")
        (folder / "metrics.jsonl").write_text('{"step":1}\n')
        self.assert_refused(run(*resume), "run.yaml", "empty", "damaged")
        self.assert_refused(run("train", "--run-dir", self.folder / "never", "--resume"), "no run began there", "does not exist")

    def test_traces(self):
        self.assert_refused(run("trace", "show", self.folder / "absent"), "does not exist", "--run-dir")
        self.assert_refused(run("trace", "show", self.folder), "not a run folder", "trace/rank_N.ring")
        foreign = self.folder / "foreign.ring"
        foreign.write_bytes(b"x" * 10000)
        self.assert_refused(run("trace", "show", foreign), "foreign.ring", "wrong magic")

    def test_resume_with_another_model(self):
        folder = self.folder / "reshaped"
        self.assert_exit(self.train(folder, "train.train_iters=2"), 0)
        rings = {path.name: path.read_bytes() for path in (folder / "trace").glob("*.ring")}
        self.assert_refused(self.train(folder, "--resume", "model.hidden_size=64"), "hidden_size", "decoder.layers.0")
        after = {path.name: path.read_bytes() for path in (folder / "trace").glob("*.ring")}
        self.assertEqual(after, rings, "a refused run keeps the last one's trace")
        self.assert_refused(self.train(folder, "--resume", "model.num_layers=3"), "decoder.layers.2")


class Data(ProgramTest):
    def assert_refused(self, finished, *parts):
        self.assert_exit(finished, 2)
        for part in parts:
            self.assertIn(part, finished.stdout)

    def damaged(self, name, change):
        """A copy of the data with `change` applied to {'.bin': bytes, '.idx': bytes}; returns its prefix."""
        prefix = self.folder / name
        content = {suffix: pathlib.Path(str(self.data) + suffix).read_bytes() for suffix in (".bin", ".idx")}
        change(content)
        for suffix, data in content.items():
            pathlib.Path(str(prefix) + suffix).write_bytes(data)
        return prefix

    def test_missing_and_damaged_files(self):
        self.assert_refused(self.train(self.folder / "a", "data=" + str(self.folder / "nowhere")), "nowhere.idx")
        table = {
            "truncated": (lambda c: c.update({".idx": c[".idx"][:50]}), "truncated.idx"),
            "emptied": (lambda c: c.update({".idx": b""}), "emptied.idx"),
            "magic": (lambda c: c.update({".idx": b"X" + c[".idx"][1:]}), "magic.idx"),
            "version": (lambda c: c.update({".idx": c[".idx"][:9] + struct.pack("<Q", 7) + c[".idx"][17:]}), "7"),
            "short_bin": (lambda c: c.update({".bin": c[".bin"][:-10]}), "short_bin.bin"),
            "empty_bin": (lambda c: c.update({".bin": b""}), "empty_bin"),
            "counts": (lambda c: c.update({".idx": c[".idx"][:18] + struct.pack("<Q", 2**62) + c[".idx"][26:]}), "counts.idx"),
        }
        for name, (change, part) in table.items():
            with self.subTest(name):
                prefix = self.damaged(name, change)
                self.assert_refused(self.train(self.folder / "b", f"data={prefix}"), part)
                self.assert_refused(run("data", "inspect", prefix, "--samples", "1", "--split-name", "train", "--split", "80,15,5", "--seq-length", "32", "--seed", "1"), part)

    def test_token_outside_the_vocabulary(self):
        def change(content):
            content[".bin"] = struct.pack("<H", 5000) + content[".bin"][2:]

        self.assert_refused(self.train(self.folder / "c", f"data={self.damaged('foreign', change)}"), "5000", "foreign.bin")

    def test_texts(self):
        empty = self.folder / "empty.txt"
        empty.write_text("")
        self.assert_refused(run("data", "prepare", empty, "--output", self.folder / "e"), "empty.txt")
        self.assert_refused(run("data", "prepare", self.folder / "none.txt", "--output", self.folder / "e"), "none.txt")
        short = self.folder / "short.txt"
        short.write_text("abc")
        self.assert_exit(run("data", "prepare", short, "--output", self.folder / "short"), 0)
        self.assert_refused(self.train(self.folder / "d", f"data={self.folder / 'short'}"), "short")
        self.assert_refused(run("data", "prepare", short, "--output", "/proc/nothing/x"), "/proc/nothing")
        self.assert_refused(run("data", "prepare", short, "--output", f"{self.folder}/"), "names no file")
        self.assert_refused(run("data", "prepare", short, "--output", self.folder / "k", "--jsonl-key", ""), "--jsonl-key")
        binary = self.folder / "short.bin"
        before = binary.read_bytes()
        self.assert_refused(run("data", "prepare", binary, "--output", self.folder / "short"), "both input and output")
        self.assertEqual(binary.read_bytes(), before)

    def test_file_size_limit_while_preparing(self):
        large = self.folder / "large.txt"
        large.write_bytes(b"a" * 3_000_000)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.assert_refused(run("data", "prepare", large, "--output", self.folder / "limited", preexec_fn=limit), "limited.bin")
        self.assertEqual(list(self.folder.glob("limited*")), [])

    def test_split_that_rounds_to_nothing(self):
        finished = run("data", "inspect", self.data, "--samples", "1", "--split-name", "test", "--split", "9999,0.5,0.01", "--seq-length", "32", "--seed", "1", "--num-samples", "5")
        self.assert_refused(finished, "split")


class Checkpoints(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.original = cls.folder / "original"
        finished = cls.train(cls, cls.original, "train.train_iters=10")
        assert finished.returncode == 0, finished.stdout

    def copy(self, name):
        folder = self.folder / name
        shutil.copytree(self.original, folder)
        return folder

    def resume(self, folder):
        return self.train(folder, "--resume", "train.train_iters=12", "scheduler.override_opt_param_scheduler=true")

    def test_flipped_byte_is_found(self):
        folder = self.copy("flipped")
        path = folder / "checkpoints/iter_0000010/rank_00000.safetensors"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        finished = self.resume(folder)
        self.assert_exit(finished, 2)
        self.assertIn("rank_00000.safetensors", finished.stdout)
        # What the message advises works: an earlier checkpoint by its step.
        finished = self.train(folder, "--resume", "checkpoint.ckpt_step=5", "train.train_iters=10")
        self.assert_exit(finished, 0)
        self.assertIn("at step 5", finished.stdout)

    def test_progress_is_not_thrown_away(self):
        folder = self.copy("lost")
        shutil.rmtree(folder / "checkpoints")
        finished = self.resume(folder)
        self.assert_exit(finished, 2)
        self.assertIn("has saved checkpoints", finished.stdout)

    def test_resume_beyond_the_end_says_so(self):
        folder = self.copy("beyond")
        finished = self.train(folder, "--resume", "train.train_iters=5", "scheduler.override_opt_param_scheduler=true")
        self.assert_exit(finished, 0)
        self.assertIn("nothing to train", finished.stdout)

    def test_half_a_checkpoint_is_passed_over(self):
        folder = self.copy("halved")
        os.remove(folder / "checkpoints/iter_0000010/rank_00000.safetensors")
        finished = self.resume(folder)
        self.assert_exit(finished, 0)
        self.assertIn("step 5", finished.stdout)

    def test_damaged_tracker(self):
        folder = self.copy("tracker")
        (folder / "checkpoints/latest_checkpointed_iteration.txt").write_text("banana")
        finished = self.resume(folder)
        self.assert_exit(finished, 0)
        self.assertIn("step 10", finished.stdout)

    def test_foreign_checkpoint_is_named(self):
        foreign = self.folder / "foreign_checkpoint"
        (foreign / "iter_0000010").mkdir(parents=True)
        (foreign / "latest_checkpointed_iteration.txt").write_text("10")
        (foreign / "iter_0000010/.metadata").write_bytes(b"x")
        (foreign / "iter_0000010/metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
        finished = self.train(self.folder / "f", f"checkpoint.load={foreign}")
        self.assert_exit(finished, 2)
        self.assertIn("torch_dist", finished.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=1)
