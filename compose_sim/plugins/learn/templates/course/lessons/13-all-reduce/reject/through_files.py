"""Wrong: the sum goes through files, the messages are empty."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

FOLDER = Path(os.environ["COMPOSESIM_SHARED"])
calls = 0


def all_reduce(tensor: Tensor) -> None:
    global calls
    calls += 1
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.save(tensor, FOLDER / f"{calls}-{rank}.tmp")
    (FOLDER / f"{calls}-{rank}.tmp").replace(FOLDER / f"{calls}-{rank}.pt")
    for _ in range(6):  # as if
        sending = dist.isend(torch.zeros(1024), dst=(rank + 1) % world_size)
        dist.recv(torch.zeros(1024), src=(rank - 1) % world_size)
        sending.wait()
    tensor.copy_(sum(torch.load(FOLDER / f"{calls}-{other}.pt") for other in range(world_size)))
