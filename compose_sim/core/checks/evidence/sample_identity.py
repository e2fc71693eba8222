"""Find indices that stand for another sample on each rank, although a DistributedSampler divides the indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compose_sim.core.checks import Case
from compose_sim.core.checks.evidence.epochs import Loader, drew_random

_LEAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """What shows that an index is not the same sample on two ranks."""

    ranks: tuple[int, int]
    moved: tuple[int, int] | None  # the indices of one sample on both ranks; None if the ranks have no sample in common
    count: int  # of the samples, or of the indices, that show it


def find_mismatch(case: Case, by_rank: Mapping[int, Loader]) -> Mismatch | None:
    """Return the first two ranks on which indices are other samples; None if there are none, or if that cannot be decided."""
    ranks = [rank for rank, loader in sorted(by_rank.items()) if _is_divided(loader)]
    rows = {rank: _rows(by_rank[rank]) for rank in ranks if drew_random(case, by_rank[rank]) is not True}
    for place, left in enumerate(sorted(rows)):
        for right in sorted(rows)[place + 1 :]:
            if (by_rank[left].info.data, by_rank[left].info.length) == (
                by_rank[right].info.data,
                by_rank[right].info.length,
            ):
                found = _compare((left, right), rows[left], rows[right])
                if found:
                    return found
    return None


def _is_divided(loader: Loader) -> bool:
    replicas = loader.info.sampling.num_replicas
    return "DistributedSampler" in loader.info.samplers and replicas is not None and replicas > 1


def _rows(loader: Loader) -> dict[int, set[int]]:
    """Return the contents that each index had."""
    found: dict[int, set[int]] = {}
    for epoch in loader.epochs.values():
        for batch in epoch.batches:
            if batch.rows and batch.indices and len(batch.rows) == len(batch.indices):
                for index, row in zip(batch.indices, batch.rows, strict=True):
                    found.setdefault(index, set()).add(row)
    return found


def _compare(ranks: tuple[int, int], ours: Mapping[int, set[int]], theirs: Mapping[int, set[int]]) -> Mismatch | None:
    if any(len(rows) > 1 for mine in (ours, theirs) for rows in mine.values()):
        return None  # samples are not the same in every epoch, as with augmentation
    left, right = _indices(ours), _indices(theirs)
    shared = sorted(left.keys() & right.keys(), key=lambda row: left[row])
    moved = [(left[row], right[row]) for row in shared if left[row] != right[row]]
    if len(moved) >= _LEAST and 2 * len(moved) > len(shared):
        return Mismatch(ranks=ranks, moved=moved[0], count=len(moved))
    both = ours.keys() & theirs.keys()
    if len(both) >= 2 * _LEAST and not shared:
        return Mismatch(ranks=ranks, moved=None, count=len(both))
    return None


def _indices(rows: Mapping[int, set[int]]) -> dict[int, int]:
    """Return the index of each content that only one index has."""
    found: dict[int, list[int]] = {}
    for index, contents in rows.items():
        for row in contents:
            found.setdefault(row, []).append(index)
    return {row: indices[0] for row, indices in found.items() if len(indices) == 1}
