"""One training step of the model of llama_27m_torch.py in a pipeline of torch.distributed.pipelining over Gloo: the yardstick
of bench/pipeline.py. One process a rank; the stages have equal layers, the first the embedding, the last norm, output and loss.

Prints one JSON object on rank 0: milliseconds of every step, losses of the last rank.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python bench/peers/llama_27m_pipeline_torch.py --schedule 1f1b
"""

import argparse
import json
import time

import torch
from torch import distributed, nn
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble
from torch.nn import functional as F

from llama_27m_torch import Block, Norm, rotary_table

SCHEDULES = {"1f1b": pipelining.Schedule1F1B, "zb1p": pipelining.ScheduleInterleavedZeroBubble, "zbv": ScheduleZBVZeroBubble}


class Stage(nn.Module):
    def __init__(self, size, stage, num_stages):
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden) if stage == 0 else None
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers // num_stages))
        is_last = stage == num_stages - 1
        self.norm = Norm(size.hidden) if is_last else None
        self.output = nn.Linear(size.hidden, size.vocabulary, bias=False) if is_last else None
        self.cos, self.sin = rotary_table(size.tokens, size.hidden // size.heads)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return x if self.output is None else self.output(self.norm(x))


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_schedule(options, rank, num_ranks):
    """(schedule, modules of this rank, whether it has the last stage). The schedule divides gradients by the microbatches."""
    num_stages = num_ranks * (2 if options.schedule == "zbv" else 1)
    mine = [rank, num_stages - 1 - rank] if options.schedule == "zbv" else [rank]
    modules = [Stage(options, stage, num_stages) for stage in mine]
    stages = [pipelining.PipelineStage(module, stage, num_stages, torch.device("cpu")) for module, stage in zip(modules, mine)]
    kind = SCHEDULES[options.schedule]
    num_microbatches = options.batch // options.microbatch
    schedule = kind(stages[0] if options.schedule == "1f1b" else stages, num_microbatches, loss_fn=cross_entropy)
    return schedule, nn.ModuleList(modules), num_stages - 1 in mine


def clip(parameters, limit):
    """By the norm over all ranks, as for a model in one piece."""
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    square = norm**2
    distributed.all_reduce(square)
    nn.utils.clip_grads_with_norm_(parameters, limit, square.sqrt())


def parse_options():
    parser = argparse.ArgumentParser()
    sizes = {"steps": 10, "threads": 1, "layers": 6, "hidden": 512, "heads": 8, "feed-forward": 1376}
    sizes |= {"vocabulary": 8192, "batch": 16, "microbatch": 2, "tokens": 256}
    for name, default in sizes.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="1f1b")
    return parser.parse_args()


def main():
    options = parse_options()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1234)
    schedule, modules, has_last = make_schedule(options, rank, distributed.get_world_size())
    parameters = list(modules.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times, losses = [], []
    for _ in range(options.steps):
        batch = torch.randint(options.vocabulary, (options.batch, options.tokens + 1))
        distributed.barrier()
        started = time.perf_counter()
        loss_of_microbatches = []
        arguments = [batch[:, :-1].contiguous()] if rank == 0 else []
        more = {"target": batch[:, 1:].contiguous(), "losses": loss_of_microbatches} if has_last else {}
        schedule.step(*arguments, return_outputs=False, **more)
        clip(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.stack(loss_of_microbatches).mean() if has_last else torch.zeros(())
        distributed.all_reduce(loss)
        losses.append(loss.item())
        times.append((time.perf_counter() - started) * 1e3)
    if rank == 0:
        print(json.dumps({"step_time_ms": times, "loss": losses, "torch": torch.__version__}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
