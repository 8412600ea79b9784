"""Reading a Hugging Face folder of 1 GB in shards: how far the process's memory grows against what the rank holds of the model, and how
fast that is against `cat` of the same files, as one rank and as one of two tensor-parallel ranks. Each round reads the files anew from disk
(they are dropped from the kernel's cache first) and once more from that cache."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import common
import torch
from safetensors.torch import save_file

ROUNDS = 5
LAYERS, HIDDEN, FFN, VOCABULARY, HEADS, GROUPS = 10, 2048, 5504, 32000, 16, 4
LOAD = common.ROOT / "build" / "release" / "bench" / "hf_load"


def write_model(folder):
    """A Llama-like model in bf16, a shard for every four layers. Values do not matter to the time."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    kv = HIDDEN // HEADS * GROUPS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    shards = [{"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}]
    for first in range(0, LAYERS, 4):
        names = [(f"model.layers.{layer}.{name}.weight", shape) for layer in range(first, min(first + 4, LAYERS)) for name, shape in shapes.items()]
        shards.append(dict(names))
    weight_map = {}
    generator = torch.Generator().manual_seed(1)
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({key: torch.randn(shape, generator=generator).to(torch.bfloat16) for key, shape in shard.items()}, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def shards_of(folder):
    return sorted(folder.glob("*.safetensors"))


def drop_from_cache(folder):
    for path in shards_of(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cat(folder):
    """Seconds of `cat` of all files into a pipe that nobody looks at."""
    started = time.perf_counter()
    subprocess.run(["cat", *map(str, shards_of(folder))], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def load(folder, *options):
    return common.last_json(common.run(LOAD, folder, "--threads", common.THREADS, *options).output)


def measure_round(folder, options):
    found = {}
    for kind in ("disk", "cache"):
        if kind == "disk":
            drop_from_cache(folder)
        found[f"cat_{kind}_s"] = cat(folder)
        if kind == "disk":
            drop_from_cache(folder)
        loaded = load(folder, *options)
        found[f"load_{kind}_s"] = loaded["load_s"]
        found |= {key: loaded[key] for key in ("local_bytes", "growth_bytes", "allocate_s")}
    return found


def measure(where):
    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = pathlib.Path(name)
        write_model(folder)
        size = sum(path.stat().st_size for path in shards_of(folder))
        rows, bounds, details = [("size of the files", f"{size / 1e9:.3f} GB in {len(shards_of(folder))} shards")], [], {"size_bytes": size}
        cases = {"one rank": [], "one of two tensor-parallel ranks": ["--tensor-parallel", "2", "--rank", "1"]}
        for case, options in cases.items():
            rounds = [measure_round(folder, options) for _ in range(ROUNDS)]
            details[case] = rounds
            middle = {key: common.median([found[key] for found in rounds]) for key in rounds[0]}
            share = middle["local_bytes"] / size
            rows.append((f"{case}: holds", f"{middle['local_bytes'] / 1e9:.3f} GB; memory grows by {middle['growth_bytes'] / 1e9:.3f} GB"))
            for kind, place in (("disk", "from disk"), ("cache", "from the kernel's cache")):
                took, other = middle[f"load_{kind}_s"], middle[f"cat_{kind}_s"]
                rows.append((f"{case}, {place}", f"{took:.3f} s; cat of all files {other:.3f} s ({size / other / 1e9:.2f} GB/s)"))
            bounds.append(common.Bound(f"memory / what is held, {case}", max(found["growth_bytes"] for found in rounds) / middle["local_bytes"], 1.1))
            ratio = common.median([found["cat_disk_s"] / found["load_disk_s"] for found in rounds])
            bounds.append(common.Bound(f"speed of cat, {case}, from disk", ratio, 0.7, at_most=False))
            details[f"{case}: share"] = share
        return common.report("hf_import", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure(sys.argv[1] if len(sys.argv) > 1 else None) else 1)
