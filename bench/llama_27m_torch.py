"""One training step of the Llama-shaped 27M model in eager PyTorch: the yardstick of `make bench`.

6 layers, 512 wide, 8 heads, feed-forward 1376, vocabulary 8192, untied, batch 8 x 256 tokens, fp32, fused AdamW.
Prints one JSON object: milliseconds of every step, losses, parameters, peak resident memory of the process.

    python bench/llama_27m_torch.py --steps 10 --threads 2
"""

import argparse
import json
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HIDDEN, HEADS, FEED_FORWARD, VOCABULARY = 6, 512, 8, 1376, 8192
BATCH, TOKENS = 8, 256
HEAD_DIM = HIDDEN // HEADS


def rotary_table(tokens, theta=10000.0):
    """cos and sin, each [tokens, head_dim], rotate-half layout (the two halves repeat)."""
    frequency = theta ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angle = torch.outer(torch.arange(tokens, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x: [batch, heads, tokens, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return F.rms_norm(x, (HIDDEN,), self.weight, 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(HIDDEN, FEED_FORWARD, bias=False) for _ in range(2))
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        normed = self.attention_norm(x)
        query, key, value = (
            linear(normed).view(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2) for linear in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.output(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(1234)
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    cos, sin = rotary_table(TOKENS)
    times, losses = [], []
    for _ in range(options.steps):
        batch = torch.randint(VOCABULARY, (BATCH, TOKENS + 1))
        started = time.perf_counter()
        logits = model(batch[:, :-1], cos, sin)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append((time.perf_counter() - started) * 1e3)
    print(
        json.dumps(
            {
                "step_time_ms": times,
                "loss": losses,
                "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
                "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
