"""Find which samples the ranks of a run trained on, epoch by epoch, whatever loader, sampler or slice gave them to each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import Batch, TrainingForward
from compose_sim.node.records.models import OptimizerStep

Rows = tuple[int, ...]  # a hash for each sample, in order
Epoch = dict[int, Rows]  # by rank
_Taken = tuple[tuple[int, int] | None, Rows]  # the loader and the number of its iteration, if there is one
_ALIKE = 1 / 3  # of the neighbors in an epoch: two random orders share far fewer


def epochs_of(observed: Observed, size: int) -> list[Epoch]:
    """
    Return the samples of each rank in each epoch, of which a right one has `size` in all.

    An epoch is an iteration over a loader. If those are not right, or there is no loader, every `size` samples of all ranks together
    are one. Return none if there are no whole ones.
    """
    taken = {rank.rank: _trained_on(rank) for rank in observed}
    found = [_by_iteration(taken), _by_count(taken, size)]
    right = (each for each in found if each and all(tally(epoch, size) == (0, 0) for epoch in each))
    return next(right, next(filter(None, found), []))


def _by_iteration(taken: Mapping[int, Sequence[_Taken]]) -> list[Epoch]:
    names = list(dict.fromkeys(name for each in taken.values() for name, _ in each))
    if None in names:
        return []
    return [
        {rank: tuple(row for name, rows in each if name == epoch for row in rows) for rank, each in taken.items()}
        for epoch in names
    ]


def _by_count(taken: Mapping[int, Sequence[_Taken]], size: int) -> list[Epoch]:
    rows = {rank: tuple(row for _, rows in each for row in rows) for rank, each in taken.items()}
    count, rest = divmod(sum(map(len, rows.values())), size)
    if not count or rest or any(len(each) % count for each in rows.values()):
        return []
    return [{rank: _part(each, epoch, count) for rank, each in rows.items()} for epoch in range(count)]


def indices_of(observed: Observed) -> dict[int, int]:
    """Return the index of each sample in the data set; none if not every batch was trained on, or ranks have different data sets."""
    pairs: set[tuple[int, int]] = set()
    for rank in observed:
        taken = [rows for _, rows in _trained_on(rank)]
        drawn = [each.indices or () for each in rank.of(Batch)]
        if [*map(len, taken)] != [*map(len, drawn)]:
            return {}
        pairs.update(
            pair for rows, indices in zip(taken, drawn, strict=True) for pair in zip(rows, indices, strict=True)
        )
    found = dict(pairs)
    return found if len(found) == len(pairs) == len(set(found.values())) else {}


def total(observed: Observed) -> int:
    """Return how many samples all ranks together trained on, repeated ones included."""
    return sum(len(rows) for rank in observed for _, rows in _trained_on(rank))


def tally(epoch: Epoch, size: int) -> tuple[int, int]:
    """Return how many of `size` samples were trained on more than once in an epoch, and how many never."""
    counts = Counter(row for rows in epoch.values() for row in rows)
    return sum(1 for count in counts.values() if count > 1), max(0, size - len(counts))


def alike(epochs: Sequence[Epoch]) -> Iterator[tuple[int, int, int]]:
    """Yield two epochs and a rank that had its samples in nearly the same order in both: neighbors were neighbors before."""
    for (one, before), (other, after) in combinations(enumerate(epochs), 2):
        for rank, rows in after.items():
            neighbors = _neighbors(rows)
            if rank in before and len(neighbors & _neighbors(before[rank])) > _ALIKE * len(neighbors):
                yield one, other, rank


def _neighbors(rows: Rows) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in pairwise(rows)}


def _part(rows: Rows, number: int, count: int) -> Rows:
    length = len(rows) // count
    return rows[number * length : (number + 1) * length]


def _trained_on(rank: RankObserved) -> list[_Taken]:
    """
    Return the samples that were given to DDP models, with the iteration over a loader that they are from.

    Return those of batches if there is no such model, or if not every pass was noted.
    """
    passes = [each for each in rank.of(TrainingForward) if each.rows]
    if passes and len(passes) >= sum(each.backwards for each in rank.of(OptimizerStep)):
        return [(_iteration(each.loader, each.epoch), each.rows or ()) for each in passes]
    return [((each.loader, each.epoch), each.rows or ()) for each in rank.of(Batch)]


def _iteration(loader: int | None, epoch: int | None) -> tuple[int, int] | None:
    return None if loader is None or epoch is None else (loader, epoch)
