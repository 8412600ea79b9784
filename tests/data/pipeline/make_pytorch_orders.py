#!/usr/bin/env python3
"""Writes pytorch_orders.json: the action lists of torch.distributed.pipelining for ZBV, DualPipeV and interleaved 1F1B.

    python make_pytorch_orders.py > pytorch_orders.json        # needs torch; the file was made with 2.13

The lists come from the schedules' private generators, without processes. Notation as in docs/pipelines.md; a full backward of
a schedule with weight gradients is B followed by W.
"""
import json

import torch
from torch.distributed.pipelining import schedules

CLASSES = {
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
    "interleaved": schedules.ScheduleInterleaved1F1B,
}
PHASES = {"F": "F", "FORWARD": "F", "I": "B", "BACKWARD_INPUT": "B", "W": "W", "BACKWARD_WEIGHT": "W",
          "B": "BW", "FULL_BACKWARD": "BW"}  # fmt: skip


def lists_of(name, ranks, microbatches):
    schedule = CLASSES[name].__new__(CLASSES[name])
    schedule.pp_group_size = ranks
    schedule.num_stages = schedule._num_stages = 2 * ranks
    schedule.n_local_stages = 2
    schedule._n_microbatches = microbatches
    schedule.number_of_rounds = max(1, microbatches // ranks)
    schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
    return [schedule._calculate_single_rank_operations(rank) for rank in range(ranks)]


def words_of(operations, ranks, has_weight):
    words = []
    for operation in operations:
        if operation is None:
            continue
        for part in getattr(operation, "sub_actions", None) or [operation]:
            chunk = "" if part.stage_index < ranks else ".1"
            for phase in PHASES[str(part.computation_type).split(".")[-1]]:
                if phase != "W" or has_weight:
                    words.append(f"{phase}{part.microbatch_index}{chunk}")
    return " ".join(words)


def main():
    rows = []
    for name in CLASSES:
        for ranks in (2, 3, 4):
            for microbatches in (2 * ranks, 3 * ranks):
                lists = lists_of(name, ranks, microbatches)
                actions = [words_of(operations, ranks, name != "interleaved") for operations in lists]
                rows.append({"name": name, "ranks": ranks, "chunks": 2, "microbatches": microbatches, "actions": actions})
    print('{"torch": "%s", "schedules": [' % torch.__version__)
    print(",\n".join(json.dumps(row) for row in rows))
    print("]}")


if __name__ == "__main__":
    main()
