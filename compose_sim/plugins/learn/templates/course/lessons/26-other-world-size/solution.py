"""Write and read checkpoints of sharded state: each rank reads the files that overlap with its shard."""

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
    kept = {"ranks": dist.get_world_size(group), "state": state}
    torch.save(kept, folder / f"shard-{dist.get_rank(group)}.pt")
    dist.barrier(group)


def load(folder: Path, elements: int, group: ProcessGroup) -> dict[str, Tensor]:
    """Return the shards of this rank, by name; called on all ranks of a group that may have another size."""
    begin, end = bounds(elements, dist.get_rank(group), dist.get_world_size(group))
    ranks = torch.load(folder / "shard-0.pt")["ranks"]  # of those that wrote; files of others are from earlier
    pieces: dict[str, list[Tensor]] = {}
    for rank in range(ranks):
        first, last = bounds(elements, rank, ranks)
        if first < end and begin < last:
            for name, shard in torch.load(folder / f"shard-{rank}.pt")["state"].items():
                pieces.setdefault(name, []).append(shard[max(0, begin - first) : end - first])
    return {name: torch.cat(some) for name, some in pieces.items()}
