"""Run a script as a rank, and write what torch's flight recorder saw in the third step: `real_rank.py OUTPUT SCRIPT`.

The recorder counts in gloo itself, where nothing of composesim is involved. Messages, which it leaves out, are
counted as they are called.
"""

from __future__ import annotations

import json
import os
import pickle
import runpy
import sys
from collections import defaultdict
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "100000"

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

OUTPUT, SCRIPT = sys.argv[1:3]
SIZES = {"Float": 4, "Long": 8, "Int": 4, "Byte": 1}
ends: list[int] = []  # of steps: the number of entries so far
messages: list[tuple[int, str, list[int], int]] = []


def entries() -> list[dict]:
    return pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]


def bytes_of(sizes: list, types: list) -> int:
    return sum(torch.Size(size).numel() * SIZES[kind] for size, kind in zip(sizes, types, strict=True))


def ranks_of(name: str) -> list[int]:
    names = dist.distributed_c10d._world.pg_names
    return dist.get_process_group_ranks(next(group for group, own in names.items() if own == name))


def follow(name: str) -> None:
    original = getattr(dist, name)

    def call(tensor: torch.Tensor, *arguments: object, group: dist.ProcessGroup, **options: object) -> object:
        messages.append((len(ends), name, dist.get_process_group_ranks(group), tensor.nbytes))
        return original(tensor, *arguments, group=group, **options)

    setattr(dist, name, call)


def step(*_: object) -> None:
    ends.append(len(entries()))
    if len(ends) != 3:  # the first that is like all later ones
        return
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for entry in entries()[ends[1] : ends[2]]:
        key = json.dumps([entry["profiling_name"].partition(":")[2], ranks_of(entry["process_group"][0])])
        amounts = 1, *(bytes_of(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in ("input", "output"))
        found[key] = [a + b for a, b in zip(found[key], amounts, strict=True)]
    for at, name, ranks, size in messages:
        if at == 2:
            key = json.dumps([name, ranks])
            amounts = (1, size, 0) if name == "send" else (1, 0, size)
            found[key] = [a + b for a, b in zip(found[key], amounts, strict=True)]
    Path(f"{OUTPUT}.{os.environ['RANK']}").write_text(json.dumps(found))


follow("send")
follow("recv")
register_optimizer_step_post_hook(step)
sys.argv = [SCRIPT]
runpy.run_path(SCRIPT, run_name="__main__")
