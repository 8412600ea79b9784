#!/usr/bin/env python3
"""Writes a small model with random weights and what transformers computes from it, as the folders here have it.

  make_fixture.py MODEL_TYPE OUT [--seed N] [--sharded] key=json ...     (transformers 5, torch, safetensors)

  make_fixture.py arcee tests/data/hf/arcee vocab_size=256 hidden_size=64 num_hidden_layers=2 num_attention_heads=4 \\
      num_key_value_heads=2 intermediate_size=160 max_position_embeddings=128

README.md beside this file says what is written and how it is computed.
"""
import argparse
import json
import math
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

BATCHES, ROWS, TOKENS, STEPS = 4, 2, 32, 20
ADAM = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def load(config_or_folder):
    auto, options = transformers.AutoModelForCausalLM, {"attn_implementation": "eager", "dtype": torch.float32}
    is_config = isinstance(config_or_folder, transformers.PreTrainedConfig)
    model = (auto.from_config if is_config else auto.from_pretrained)(config_or_folder, **options)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.train()


@torch.no_grad()
def randomize(model, seed):
    """Large enough that an error anywhere shows: matrices of unit gain, norms 1 +- 0.1, biases 0.2."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        if "embed" in name:
            weight.copy_((0.15 if model.config.tie_word_embeddings else 0.5) * noise)
        elif name.endswith("bias"):
            weight.copy_(0.2 * noise)
        elif weight.ndim == 1:
            weight.copy_(weight + 0.1 * noise)
        else:
            weight.copy_(noise / math.sqrt(weight.shape[-1]))


def stored(model, tensors):
    """By the names and shapes of the files (transformers keeps all experts of a layer in one tensor)."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in revert_weight_conversion(model, dict(tensors)).items()}


def backward(model, ids, labels):
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    return logits.detach(), loss.detach()


def observe(model, out):
    """Hooks that keep hidden states and decisions of routers of the next forward pass in `out`; their handles."""
    first = lambda result: (result[0] if isinstance(result, tuple) else result).detach().clone()
    keep = lambda name: lambda module, inputs, result: out.update({name: first(result)})

    def keep_router(prefix):
        def hook(module, inputs, result):
            logits, weights, index = (tensor.detach() for tensor in result)
            order = index.sort(dim=-1)
            weights = weights.gather(1, order.indices if weights.shape == index.shape else order.values)
            out.update({f"{prefix}.logits": logits.clone(), f"{prefix}.topk_index": order.values, f"{prefix}.topk_weight": weights})

        return hook

    base = model.base_model
    layers, norm = (base.h, base.ln_f) if hasattr(base, "h") else (base.layers, base.norm)
    hooked = [model.get_input_embeddings().register_forward_hook(keep("hidden.embed")),
              norm.register_forward_hook(keep("hidden.final_norm"))]
    for number, layer in enumerate(layers):
        hooked.append(layer.register_forward_hook(keep(f"hidden.layer.{number}")))
        routers = [module for module in layer.modules() if type(module).__name__.lower().endswith("router")]
        hooked += [router.register_forward_hook(keep_router(f"router.{number}")) for router in routers]
    return hooked


def oracle(model, ids, labels):
    out = {"input_ids": ids[0], "labels": labels[0], "batches.input_ids": ids, "batches.labels": labels}
    handles = observe(model, out)
    logits, loss = backward(model, ids[0], labels[0])
    for handle in handles:
        handle.remove()
    gradients = {name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in model.named_parameters()}
    norm = torch.sqrt(sum((gradient.double() ** 2).sum() for gradient in gradients.values())).float()
    shifted = model(input_ids=ids[0], labels=ids[0], use_cache=False).loss.detach()
    out |= {"logits": logits, "loss": loss.reshape(1), "loss_shifted": shifted.reshape(1), "grad_norm": norm.reshape(1)}
    return out | {f"grad.{name}": gradient for name, gradient in stored(model, gradients).items()}


def trajectory(model, ids, labels):
    is_plain = lambda name, weight: weight.ndim <= 1 or name.endswith("bias")
    groups = [{"params": [weight for name, weight in model.named_parameters() if is_plain(name, weight) == plain], "weight_decay": decay}
              for plain, decay in ((False, ADAM["weight_decay"]), (True, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=ADAM["lr"], betas=ADAM["betas"], eps=ADAM["eps"], foreach=False, fused=False)
    steps = []
    for step in range(STEPS):
        batch = step % BATCHES
        _, loss = backward(model, ids[batch], labels[batch])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        steps.append({"step": step + 1, "batch": batch, "loss": loss.item(), "grad_norm": norm.item()})
    return {"optimizer": {"name": "AdamW", **ADAM}, "clip_grad_norm": 1.0, "batches": BATCHES, "steps": steps}


def legacy(config):
    """config.json as transformers 4 wrote it."""
    config = dict(config, torch_dtype=config["dtype"])
    del config["dtype"]
    rope = dict(config.pop("rope_parameters", None) or {})
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    return config


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_type")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("keys", nargs="*", metavar="key=json")
    arguments = parser.parse_intermixed_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    keys = {key: json.loads(value) for key, value in (item.split("=", 1) for item in arguments.keys)}
    model = load(transformers.AutoConfig.for_model(arguments.model_type, **keys))
    randomize(model, arguments.seed)
    model.save_pretrained(arguments.out, max_shard_size="300KB" if arguments.sharded else "1GB")
    (arguments.out / "generation_config.json").unlink(missing_ok=True)
    write_json(arguments.out / "config.legacy.json", legacy(json.loads((arguments.out / "config.json").read_text())))

    generator = torch.Generator().manual_seed(arguments.seed + 1000)
    uniform = torch.rand((BATCHES, ROWS, TOKENS + 1), generator=generator)
    tokens = (uniform * uniform * model.config.vocab_size).long()  # skewed: there is something to learn
    ids, labels = tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()
    model = load(arguments.out)  # what the files say is what is computed
    tensors = {name: tensor.clone().contiguous() for name, tensor in oracle(model, ids, labels).items()}
    save_file(tensors, arguments.out / "oracle.safetensors")
    write_json(arguments.out / "trajectory.json", trajectory(model, ids, labels))


if __name__ == "__main__":
    main()
