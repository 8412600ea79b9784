"""One training step of a Llama-shaped model in eager PyTorch with fused AdamW: the yardstick of `make bench`.

Without options the 27M model: 6 layers, 512 wide, 8 heads, feed-forward 1376, vocabulary 8192, untied, batch 8 x 256 tokens,
fp32, on the CPU. --bf16 computes under autocast with fp32 parameters, as people train in PyTorch.
Prints one JSON object: milliseconds of every step, losses, parameters, peak memory (of the process, or of the device).

    python bench/peers/llama_27m_torch.py --steps 10 --threads 2
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python bench/peers/llama_27m_torch.py …   (DistributedDataParallel over Gloo)
    python bench/peers/llama_27m_torch.py --device cuda --bf16 --layers 16 --hidden 2048 --heads 16 --feed-forward 5504
"""

import argparse
import json
import os
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F


def rotary_table(tokens, head_dim, theta=10000.0):
    """cos and sin, each [tokens, head_dim], rotate-half layout (the two halves repeat)."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(tokens, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x: [batch, heads, tokens, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.heads = size.heads
        self.attention_norm, self.mlp_norm = Norm(size.hidden), Norm(size.hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(size.hidden, size.hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(size.hidden, size.feed_forward, bias=False) for _ in range(2))
        self.down = nn.Linear(size.feed_forward, size.hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, hidden = x.shape
        normed = self.attention_norm(x)
        query, key, value = (
            linear(normed).view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2) for linear in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden)
        self.output = nn.Linear(size.hidden, size.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.output(self.norm(x))


def parse_options():
    parser = argparse.ArgumentParser()
    sizes = {"steps": 10, "threads": 2, "layers": 6, "hidden": 512, "heads": 8, "feed-forward": 1376}
    sizes |= {"vocabulary": 8192, "batch": 8, "tokens": 256}
    for name, default in sizes.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args()


def main():
    options = parse_options()
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if num_ranks > 1:
        torch.distributed.init_process_group("gloo")
        options.batch //= num_ranks
    on_gpu = options.device != "cpu"
    torch.set_num_threads(options.threads)
    torch.manual_seed(1234)
    model = Llama(options).to(options.device)
    if num_ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    table = rotary_table(options.tokens, options.hidden // options.heads)
    cos, sin = (part.to(options.device, torch.bfloat16 if options.bf16 else torch.float32) for part in table)
    times, losses = [], []
    for _ in range(options.steps):
        batch = torch.randint(options.vocabulary, (options.batch, options.tokens + 1)).to(options.device)
        started = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.bf16):
            logits = model(batch[:, :-1], cos, sin)
            loss = F.cross_entropy(logits.view(-1, options.vocabulary), batch[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    print(
        json.dumps(
            {
                "step_time_ms": times,
                "loss": losses,
                "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
                "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "peak_device_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
                "torch": torch.__version__,
            }
        )
    )
    if num_ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
