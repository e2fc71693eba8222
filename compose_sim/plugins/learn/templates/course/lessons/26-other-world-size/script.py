"""Write and read checkpoints of sharded state. harness.py calls this with two ranks and with three, in turns."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def bounds(elements: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return where the shard of a rank begins and ends, if a flat tensor of so many elements is shared out."""
    size = -(-elements // ranks)
    return min(elements, rank * size), min(elements, (rank + 1) * size)


def save(folder: Path, state: dict[str, Tensor], elements: int, group: ProcessGroup) -> None:
    """Write the shards of this rank, by name; called on all ranks of the group. The folder may hold an earlier checkpoint."""
    torch.save(state, folder / f"shard-{dist.get_rank(group)}.pt")
    dist.barrier(group)


def load(folder: Path, elements: int, group: ProcessGroup) -> dict[str, Tensor]:
    """Return the shards of this rank, by name; called on all ranks of a group that may have another size."""
    return torch.load(folder / f"shard-{dist.get_rank(group)}.pt")
