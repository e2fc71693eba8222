"""Wasteful: rank 0 gathers everything, and writes one file."""

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
    size = -(-elements // dist.get_world_size(group))
    for name, shard in state.items():
        padded = torch.cat([shard, torch.zeros(size - len(shard))])
        shards = [torch.empty(size) for _ in range(dist.get_world_size(group))]
        dist.all_gather(shards, padded, group=group)
        if dist.get_rank(group) == 0:
            torch.save(torch.cat(shards)[:elements], folder / f"{name}.pt")
    dist.barrier(group)


def load(folder: Path, elements: int, group: ProcessGroup) -> dict[str, Tensor]:
    """Return the shards of this rank, by name; called on all ranks of a group that may have another size."""
    begin, end = bounds(elements, dist.get_rank(group), dist.get_world_size(group))
    return {file.stem: torch.load(file)[begin:end].clone() for file in folder.glob("*.pt")}
