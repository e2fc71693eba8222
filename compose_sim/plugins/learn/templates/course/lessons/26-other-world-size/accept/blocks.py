"""Right: many small files, whose number does not depend on the number of ranks."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

BLOCK = 200  # elements of a file, at most


def bounds(elements: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return where the shard of a rank begins and ends, if a flat tensor of so many elements is shared out."""
    size = -(-elements // ranks)
    return min(elements, rank * size), min(elements, (rank + 1) * size)


def save(folder: Path, state: dict[str, Tensor], elements: int, group: ProcessGroup) -> None:
    """Write the shards of this rank, by name; called on all ranks of the group. The folder may hold an earlier checkpoint."""
    begin, end = bounds(elements, dist.get_rank(group), dist.get_world_size(group))
    for block in range(begin // BLOCK, -(-end // BLOCK)):
        low, high = max(begin, block * BLOCK), min(end, (block + 1) * BLOCK)
        cut = {name: shard[low - begin : high - begin].clone() for name, shard in state.items()}
        torch.save(cut, folder / f"{block}-{low}-{high}.pt")
    if dist.get_rank(group) == 0:
        (folder / "ranks").write_text(str(dist.get_world_size(group)))
    dist.barrier(group)


def load(folder: Path, elements: int, group: ProcessGroup) -> dict[str, Tensor]:
    """Return the shards of this rank, by name; called on all ranks of a group that may have another size."""
    ranks = int((folder / "ranks").read_text())
    begin, end = bounds(elements, dist.get_rank(group), dist.get_world_size(group))
    pieces: dict[str, list[Tensor]] = {}
    for rank in range(ranks):
        first, last = bounds(elements, rank, ranks)
        for block in range(first // BLOCK, -(-last // BLOCK)):
            low, high = max(first, block * BLOCK), min(last, (block + 1) * BLOCK)
            if low < end and begin < high:
                for name, shard in torch.load(folder / f"{block}-{low}-{high}.pt").items():
                    pieces.setdefault(name, []).append(shard[max(0, begin - low) : end - low])
    return {name: torch.cat(some) for name, some in pieces.items()}
