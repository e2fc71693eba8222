"""Save and load with script.py in groups of two and three ranks, and compare the shards with the whole state."""

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from measure import Traffic, difference, report
from measure_memory import Storages
from script import load, save
from torch import Tensor

ELEMENTS = 3001
NAMES = ("parameters", "exp_avg", "exp_avg_sq")
WORLD_SIZES = (3, 2, 3, 1)  # each saves what the next one loads


def shards(step: int, rank: int, ranks: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    whole = {name: torch.randn(ELEMENTS, generator=generator) for name in NAMES}
    size = -(-ELEMENTS // ranks)
    return {name: each[rank * size : (rank + 1) * size].clone() for name, each in whole.items()}


def main() -> None:
    rank = dist.get_rank()
    groups = {ranks: dist.new_group([*range(ranks)]) for ranks in sorted({*WORLD_SIZES})}
    where = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(where)
    folder, differs, missing, largest, traffic = Path(where[0]), 0.0, 0, 0, Traffic()
    for step, (before, after) in enumerate(pairwise(WORLD_SIZES)):
        dist.barrier()
        if rank < before:
            with traffic:
                save(folder, shards(step, rank, before), ELEMENTS, groups[before])
        dist.barrier()
        if rank < after:
            storages = Storages([], at_least=ELEMENTS // 4)
            with traffic, storages:
                found = load(folder, ELEMENTS, groups[after])
            largest = max(largest, storages.largest if after > 1 else 0)
            wanted = shards(step, rank, after)
            missing += len(set(wanted) - set(found))
            differs = max(differs, difference((found[name], wanted[name]) for name in wanted if name in found))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
    report(
        shards_differ=differs,
        names_missing=missing,
        largest_tensor=largest,
        elements_sent=traffic.elements(),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
