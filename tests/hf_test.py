"""`pharos hf import|export|verify` as a user runs them: what is exported loads in transformers and computes the same, what is
damaged is refused. PHAROS names the program; torch and transformers are in this Python's path."""

import json
import pathlib
import resource
import shutil
import struct
import subprocess
import unittest

import safetensors.torch
import torch
import transformers

from pharos_program import PROGRAM, RECIPE, ProgramTest, run

FIXTURES = pathlib.Path(__file__).resolve().parent / "data" / "hf"
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def fixtures():
    return sorted(path.parent.name for path in FIXTURES.glob("*/config.json"))


def load(folder):
    """The model as transformers loads it, in float32, with what it says about the weights."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    return model.eval(), info


def header(*tensors, data=b""):
    """A safetensors file of (name, dtype, shape, begin, end)."""
    text = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]} for name, dtype, shape, begin, end in tensors})
    return struct.pack("<Q", len(text)) + text.encode() + data


class HuggingFaceTest(ProgramTest):
    def copy(self, name):
        """A fixture, to be changed."""
        target = self.folder / "changed"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(FIXTURES / name, target)
        for path in target.iterdir():
            path.chmod(0o644)
        return target


class Transfer(HuggingFaceTest):
    def import_and_export(self, name, *options):
        checkpoint, out = self.folder / f"{name}.checkpoint", self.folder / f"{name}.out"
        self.assert_exit(run("hf", "import", FIXTURES / name, checkpoint, "--force"), 0)
        self.assert_exit(run("hf", "export", checkpoint, out, "--force", *options), 0)
        return out

    def test_what_is_exported_loads_in_transformers_and_gives_the_same_logits(self):
        for name in fixtures():
            with self.subTest(name):
                out = self.import_and_export(name)
                self.assert_exit(run("hf", "verify", FIXTURES / name, out), 0)
                model, info = load(out)
                self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
                oracle = safetensors.torch.load_file(FIXTURES / name / "oracle.safetensors")
                with torch.no_grad():
                    logits = model(oracle["input_ids"]).logits
                self.assertLessEqual((logits - oracle["logits"]).abs().max().item(), 3e-5)

    def test_a_trained_model_continues_a_text_as_transformers_does(self):
        folder = self.folder / "run"
        trained = self.train(folder, "train.train_iters=20", "train.exit_interval=null", "checkpoint.save_interval=20", "logger.log_interval=10")
        self.assert_exit(trained, 0)
        out = self.folder / "trained"
        self.assert_exit(run("hf", "export", folder, out), 0)
        generated = run("generate", folder, "--prompt", "ab cd", "--max-tokens", "12", "--temperature", "0", "--json")
        self.assert_exit(generated, 0)
        record = json.loads([line for line in generated.stdout.splitlines() if line.startswith("{")][-1])
        prompt = torch.tensor([list(b"ab cd")])
        model, _ = load(out)
        with torch.no_grad():
            tokens = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, prompt.shape[1] :].tolist()
        self.assertEqual(record["tokens"][-12:], tokens)

    def test_an_imported_checkpoint_is_one(self):
        checkpoint = self.folder / "start"
        self.assert_exit(run("hf", "import", FIXTURES / "llama", checkpoint), 0)
        self.assert_exit(run("generate", checkpoint, "--prompt-ids", "97,98", "--max-tokens", "5"), 0)
        run_values = ["train.train_iters=1", "train.micro_batch_size=1", "train.global_batch_size=1", "optimizer.lr=1e-4"]
        imported = checkpoint / "iter_0000000" / "run_config.yaml"
        self.assert_exit(run("plan", imported, *run_values), 0)
        self.assertIn("null_tokenizer_eod_id: 2", imported.read_text())  # eos_token_id of the folder
        overrides = [f"checkpoint.pretrained_checkpoint={checkpoint}", "train.train_iters=1", "seq_length=32"]
        command = ["train", "hf_pretrain", f"hf_path={FIXTURES / 'llama'}", *overrides]
        self.assert_exit(run(*command, "--run-dir", self.folder / "continued"), 0)
        self.assertIn("null_tokenizer_eod_id: 2", (self.folder / "continued" / "run.yaml").read_text())

    def test_types_and_sizes_of_files(self):
        out = self.import_and_export("llama", "--dtype", "bf16", "--max-shard-size", "50KB")
        self.assertGreater(len(list(out.glob("*.safetensors"))), 2)
        self.assertEqual(run("hf", "verify", FIXTURES / "llama", out).returncode, 1)
        compared = run("hf", "verify", FIXTURES / "llama", out, "--tolerance", "0.05", "--json")
        self.assert_exit(compared, 0)
        self.assertTrue(json.loads(compared.stdout)["ok"])
        model, _ = load(out)
        self.assertEqual(model.config.num_hidden_layers, 2)

    def test_ranks_agree_with_the_reference(self):
        folder = FIXTURES / "llama"
        command = ["hf", "verify", folder, "--oracle", folder / "oracle.safetensors", "--json"]
        for layout in (["--tensor-parallel", "2", "--sequence-parallel"], ["--pipeline-parallel", "2"], ["--data-parallel", "2"]):
            finished = run(*command, *layout)
            self.assert_exit(finished, 0)
            self.assertTrue(json.loads(finished.stdout)["ok"], layout)
        broken = self.copy("llama")
        weights = safetensors.torch.load_file(broken / "model.safetensors")
        weights["model.layers.1.mlp.down_proj.weight"][0, -1] += 1
        safetensors.torch.save_file(weights, broken / "model.safetensors")
        finished = run("hf", "verify", broken, "--oracle", broken / "oracle.safetensors", "--tensor-parallel", "2")
        self.assert_exit(finished, 1)
        self.assertIn("OUTSIDE", finished.stdout)
        self.assert_exit(run(*command, "--tensor-parallel", "3"), 2)


class BadInput(HuggingFaceTest):
    def assert_refused(self, folder, *parts):
        for command in (["hf", "import", folder, self.folder / "never"], ["hf", "verify", folder, FIXTURES / "llama"]):
            finished = run(*command)
            if command[1] == "verify" and finished.returncode == 1:
                continue  # sound files of another model
            self.assert_exit(finished, 2)
            for part in parts:
                self.assertIn(part, finished.stdout)
            self.assertIn("error: ", finished.stdout)
            self.assertNotIn("internal error", finished.stdout)
        self.assertFalse([path for path in self.folder.iterdir() if path.name.startswith("never")])

    def test_weights(self):
        whole = (FIXTURES / "llama" / "model.safetensors").read_bytes()
        table = {
            "empty": (b"", "0 bytes"),
            "cut in the header": (whole[:100], "byte 100"),
            "cut in the data": (whole[:-1], "ends at byte"),
            "longer": (whole + b"x", "belong to no tensor"),
            "2 GB header": (struct.pack("<Q", 2 << 30) + whole[8:], "at most 100 000 000"),
            "not JSON": (struct.pack("<Q", 8) + b"not json", "does not start with"),
            "half JSON": (struct.pack("<Q", 8) + b'{"a":   ', "not valid JSON"),
            "out of range": (header(("a", "F32", [1], 0, 4)), "ends at byte"),
            "overlapping": (header(("a", "F32", [2], 0, 8), ("b", "F32", [1], 4, 8), data=bytes(8)), "overlaps"),
            "hole": (header(("a", "F32", [1], 4, 8), data=bytes(8)), "hole"),
            "unknown type": (header(("a", "F31", [1], 0, 4), data=bytes(4)), "'F31' is not known"),
            "shape and bytes": (header(("a", "F32", [3], 0, 4), data=bytes(4)), "need 12 bytes"),
            "huge shape": (header(("a", "F32", [2**62, 2**62], 0, 4), data=bytes(4)), "63 bits"),
        }
        for name, (content, part) in table.items():
            with self.subTest(name):
                folder = self.copy("llama")
                (folder / "oracle.safetensors").unlink()
                (folder / "model.safetensors").write_bytes(content)
                self.assert_refused(folder, part)

    def test_weights_of_another_model(self):
        folder = self.copy("llama")
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        weights["model.norm.weight"] = torch.ones(64, dtype=torch.int64)
        weights["lm_head.weight"] = torch.zeros(0, 64)
        weights["extra"] = torch.zeros(0)
        del weights["model.embed_tokens.weight"]
        safetensors.torch.save_file(weights, folder / "model.safetensors")
        finished = run("hf", "import", folder, self.folder / "never")
        self.assert_exit(finished, 2)
        for part in ("has the type I64", "lm_head.weight (file [0, 64]", "not in the model: extra", "missing in the files: model.embed_tokens.weight"):
            self.assertIn(part, finished.stdout)

    def test_index(self):
        name = "qwen2_tied_sharded"
        good = json.loads((FIXTURES / name / "model.safetensors.index.json").read_text())["weight_map"]
        first = next(iter(good))
        outside = self.folder / "outside.safetensors"
        shutil.copy(FIXTURES / name / good[first], outside)
        table = {
            "missing file": (json.dumps({"weight_map": good | {first: "model-7.safetensors"}}), "'model-7.safetensors' is missing"),
            "outside": (json.dumps({"weight_map": good | {first: "../outside.safetensors"}}), "not a plain file name"),
            "absolute": (json.dumps({"weight_map": good | {first: str(outside)}}), "not a plain file name"),
            "wrong file": (json.dumps({"weight_map": good | {first: sorted(set(good.values()) - {good[first]})[0]}}), "does not hold"),
            "number": (json.dumps({"weight_map": good | {first: 3}}), "is 3, which is not a plain file name"),
            "twice": ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' appears twice"),
            "list": (json.dumps({"weight_map": list(good)}), "not an object"),
            "none": ("{}", "weight_map"),
            "no tensor": ('{"weight_map": {}}', "lists no tensor"),
            "cut": (json.dumps({"weight_map": good})[:-5], "not valid JSON"),
            "deep": ('{"a":' * 100_000, "deeper"),
        }
        for case, (text, part) in table.items():
            with self.subTest(case):
                folder = self.copy(name)
                (folder / "model.safetensors.index.json").write_text(text)
                self.assert_refused(folder, part)

    def test_files_that_cannot_be_read(self):
        folder = self.copy("llama")
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to("nothing")
        (folder / "oracle.safetensors").unlink()
        self.assert_refused(folder, "model.safetensors")
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").mkdir()
        self.assert_refused(folder, "model.safetensors")
        self.assert_refused(self.folder / "nothing", "nothing")

    def test_config(self):
        table = {
            '{"num_attention_heads": 3}': "num_attention_heads",
            '{"hidden_size": 63, "head_dim": null}': "hidden_size",
            '{"num_key_value_heads": 3}': "num_key_value_heads",
            '{"num_hidden_layers": -1}': "num_hidden_layers",
            '{"vocab_size": 1e99}': "vocab_size",
            '{"model_type": "none_such"}': "none_such",
            '{"hidden_size": "64"}': "hidden_size",
        }
        for patch, part in table.items():
            with self.subTest(patch):
                folder = self.copy("llama")
                config = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps(config | json.loads(patch)))
                finished = run("hf", "import", folder, self.folder / "never")
                self.assert_exit(finished, 2)
                self.assertIn(part, finished.stdout)

    def test_a_full_disk(self):
        checkpoint, out = self.folder / "source", self.folder / "full"
        self.assert_exit(run("hf", "import", FIXTURES / "llama", checkpoint, "--force"), 0)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))

        for command in (["export", checkpoint, out], ["import", FIXTURES / "llama", out]):
            finished = subprocess.run([PROGRAM, "hf", *map(str, command)], capture_output=True, text=True, check=False, preexec_fn=limit)
            self.assertEqual(finished.returncode, 2, finished.stderr)
            self.assertIn("Cannot write", finished.stderr)
            self.assertFalse([path for path in self.folder.iterdir() if path.name.startswith("full")])

    def test_places(self):
        checkpoint = self.folder / "source"
        self.assert_exit(run("hf", "import", FIXTURES / "llama", checkpoint, "--force"), 0)
        (self.folder / "link").symlink_to("nowhere")
        for command, part in (
            (["export", checkpoint, FIXTURES / "llama"], "replaced while it is read"),
            (["export", checkpoint, FIXTURES / "qwen2"], "--force"),
            (["export", checkpoint, checkpoint, "--force"], "replaced while it is read"),
            (["export", self.folder / "nothing", self.folder / "x"], "no checkpoint"),
            (["import", FIXTURES / "llama", RECIPE], "is not a folder"),
            (["export", checkpoint, self.folder / "x", "--family", "none_such"], "none_such"),
            *((["export", checkpoint, self.folder / "x", f"--max-shard-size={size}"], f"'{size}' is not a size above 0") for size in ("many", "-5GB", "-5", "0", "0KB")),
            (["export", checkpoint, self.folder / "link"], "is not a folder"),
            (["verify", FIXTURES / "llama"], "--oracle"),
            (["verify", FIXTURES / "llama", FIXTURES / "llama", "--tolerance", "nan"], "'nan' is not a number from 0"),
        ):
            finished = run("hf", *command)
            self.assert_exit(finished, 2)
            self.assertIn(part, finished.stdout)



if __name__ == "__main__":
    unittest.main()
