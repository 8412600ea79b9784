"""The other side of optimizer_bench.cc in Python: clip_grad_norm_ and AdamW(fused=True) on the same 27M parameters.

    OMP_NUM_THREADS=2 .venv/bin/python bench/peers/optimizer_torch.py
"""

import statistics
import time

import torch

WARM_UP, STEPS = 10, 50

torch.set_num_threads(2)
block = [(512,)] + [(512, 512)] * 4 + [(512,), (1376, 512), (1376, 512), (512, 1376)]
shapes = [(8192, 512)] + block * 6 + [(512,), (8192, 512)]
parameters = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes]
for parameter in parameters:
    parameter.grad = torch.randn(parameter.shape)
groups = [
    {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": 0.1},
    {"params": [parameter for parameter in parameters if parameter.dim() == 1], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
times_ms = []
for _ in range(WARM_UP + STEPS):
    for parameter in parameters:
        parameter.grad.mul_(1.5)  # not timed: keeps the clip active
    started = time.perf_counter()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    norm.item()
    times_ms.append((time.perf_counter() - started) * 1e3)
print(f"median {statistics.median(times_ms[WARM_UP:]):.1f} ms, smallest {min(times_ms):.1f} ms")
