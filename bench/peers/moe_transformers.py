"""Training steps of a mixture-of-experts model of a Hugging Face folder by transformers, with clipping and fused AdamW; fp32, CPU.
Prints one JSON object: milliseconds of every step, losses, parameters.

    python bench/peers/moe_transformers.py FOLDER --batch 4 --tokens 256 --steps 8 --threads 2 --experts eager
"""

import argparse
import json
import time

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name, default in {"batch": 4, "tokens": 256, "steps": 8, "threads": 2}.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--experts", default="eager", help="how transformers computes experts: eager, grouped_mm")
    parser.add_argument("--attention", default="eager", help="eager, sdpa")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_pretrained(
        options.folder, dtype=torch.float32, attn_implementation=options.attention, experts_implementation=options.experts
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    vocabulary = model.config.vocab_size
    times, losses = [], []
    for _ in range(options.steps):
        batch = torch.randint(vocabulary, (options.batch, options.tokens + 1))
        started = time.perf_counter()
        logits = model(batch[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.view(-1, vocabulary), batch[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append((time.perf_counter() - started) * 1e3)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"step_time_ms": times, "loss": losses, "num_parameters": parameters, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
