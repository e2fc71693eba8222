"""Copies of one rank's sampler draw what the samplers of the other ranks draw."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset  # noqa: E402

from compose_sim.plugins.world.node import shares  # noqa: E402

pytestmark = pytest.mark.train
DATA = TensorDataset(torch.arange(103.0))


class Blocks:
    """Neighbouring samples for each rank, which it computes from its number when it is iterated."""

    def __init__(self, rank: int, num_replicas: int) -> None:
        self.rank, self.num_replicas, self.data = rank, num_replicas, DATA

    def __iter__(self) -> Any:
        size = len(DATA) // self.num_replicas
        return iter(range(self.rank * size, (self.rank + 1) * size))


def torchs(rank: int, **options: Any) -> DataLoader:
    return DataLoader(DATA, sampler=DistributedSampler(DATA, 4, rank, **options), batch_size=5)


@pytest.mark.parametrize(
    "made",
    [
        torchs,
        lambda rank: torchs(rank, drop_last=True, shuffle=False),
        lambda rank: torchs(rank, seed=7),
        lambda rank: DataLoader(DATA, sampler=Blocks(rank, 4), batch_size=5, drop_last=True),
        lambda rank: DataLoader(DATA, batch_sampler=BatchSampler(Blocks(rank, 4), 3, drop_last=False)),
        lambda rank: DataLoader(DATA, sampler=DistributedSampler(DATA, 4, rank), batch_size=None),
    ],
)
def test_every_share_is_that_of_the_rank_itself(made: Any) -> None:
    copies = [*shares.all_shares(made(2))]

    assert copies == [shares.batches_of(made(rank)) for rank in range(4)]


class Asking:
    """Every n-th sample from the rank's number on, which it asks for when it is iterated."""

    def __iter__(self) -> Any:
        return iter(range(dist.get_rank(), len(DATA), 4))


def test_a_sampler_that_asks_for_its_rank_is_told() -> None:
    ask = dist.get_rank
    told = [*shares.told_shares(DataLoader(DATA, sampler=Asking(), batch_size=200), 4)]

    assert told == [[[*range(rank, 103, 4)]] for rank in range(4)]
    with pytest.raises(LookupError):
        _ = [*shares.told_shares(DataLoader(DATA, sampler=Blocks(1, 4)), 4)]
    assert dist.get_rank is ask


def test_a_share_is_mapped_to_ranks_only_if_one_way_fits() -> None:
    assert shares.map_of([(0, 0), (3, 3), (7, 7)], 8, 8, []) == [*range(8)]
    assert shares.map_of([(0, 0), (3, 1), (7, 3)], 8, 4, []) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert shares.map_of([(0, 0), (5, 1), (7, 3)], 8, 4, []) == [0, 1, 2, 3] * 2
    assert shares.map_of([(0, 0), (7, 3)], 8, 4, []) is None, "two ways fit"
    assert shares.map_of([(0, 0), (4, 0), (7, 0)], 8, 2, [[0] * 8]) == [0] * 8, "a dimension of a mesh"
    assert shares.map_of([(0, 1), (7, 0)], 8, 4, []) is None


def test_a_summary_counts_what_is_repeated_and_left_out() -> None:
    found = shares.summary([[[0, 1], [2]], [[2, 3]]], 6)

    assert (found["distinct"], found["repeated"], found["dropped"]) == (4, 1, 2)
    assert (found["steps"], found["samples"], found["listed"]) == ([1, 2], [2, 3], [[0, 1, 2], [2, 3]])
