"""Right: each file says where its elements belong, and files of earlier checkpoints are removed."""

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
    if dist.get_rank(group) == 0:
        for file in folder.glob("from-*.pt"):
            file.unlink()
    dist.barrier(group)
    begin, _ = bounds(elements, dist.get_rank(group), dist.get_world_size(group))
    torch.save(state, folder / f"from-{begin:09}.pt")
    dist.barrier(group)


def load(folder: Path, elements: int, group: ProcessGroup) -> dict[str, Tensor]:
    """Return the shards of this rank, by name; called on all ranks of a group that may have another size."""
    begin, end = bounds(elements, dist.get_rank(group), dist.get_world_size(group))
    mine: dict[str, Tensor] = {}
    for file in sorted(folder.glob("from-*.pt")):
        first = int(file.stem.removeprefix("from-"))
        for name, shard in torch.load(file).items():
            own = mine.setdefault(name, torch.empty(end - begin))
            low, high = max(begin, first), min(end, first + len(shard))
            if low < high:
                own[low - begin : high - begin] = shard[low - first : high - first]
    return mine
