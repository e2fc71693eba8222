"""Find what makes a DistributedSampler divide wrongly: indices that are other samples on each rank, or its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.checks import Case
from compose_sim.core.checks.evidence.epochs import Loader, drew_random, pairs

_LEAST = 3
_FIX_SHARE = (
    "Leave out `num_replicas` and `rank`: DistributedSampler(data) takes them from the process group; or pass dist.get_world_size() "
    "and dist.get_rank()."
)
_FIX_SEED = (
    "Pass the same `seed` on every rank: a constant, or a number that rank 0 broadcasts; not one from the clock, the process id or "
    "the rank. The sampler itself gives each rank another part."
)
_FIX_EPOCH = "Call `sampler.set_epoch(epoch)` with the same number on every rank."


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
    for left, right in pairs(case, by_rank):
        if left in rows and right in rows:
            ours, theirs = by_rank[left].info, by_rank[right].info
            alike = (ours.data, ours.length) == (theirs.data, theirs.length)
            replicas = ours.sampling.num_replicas or 1
            found = _compare((left, right), rows[left], rows[right], replicas) if alike else None
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


def _compare(
    ranks: tuple[int, int], ours: Mapping[int, set[int]], theirs: Mapping[int, set[int]], replicas: int
) -> Mismatch | None:
    """Compare what the indices of both ranks had, or else the contents that both had: these may occur twice in right data too."""
    if any(len(rows) > 1 for mine in (ours, theirs) for rows in mine.values()):
        return None  # samples are not the same in every epoch, as with augmentation
    both = ours.keys() & theirs.keys()
    other = [index for index in both if ours[index] != theirs[index]]
    if both and 2 * len(other) <= len(both):
        return None
    left, right = _indices(ours), _indices(theirs)
    shared = sorted(left.keys() & right.keys(), key=lambda row: left[row])
    moved = [(left[row], right[row]) for row in shared if left[row] != right[row]]
    meet = len(left) < len(ours) or len(right) < len(theirs)  # equal contents on one rank
    proven = len(other) >= _LEAST or not (meet or _may_be_twins(moved, len(ours), replicas))
    if proven and len(moved) >= _LEAST and 2 * len(moved) > len(shared):
        return Mismatch(ranks=ranks, moved=moved[0], count=len(moved))
    if len(both) >= 2 * _LEAST and set().union(*ours.values()).isdisjoint(set().union(*theirs.values())):
        return Mismatch(ranks=ranks, moved=None, count=len(both))
    return None


def _may_be_twins(moved: Sequence[tuple[int, int]], length: int, replicas: int) -> bool:
    """
    Return whether contents at other indices on each rank may be samples that occur twice in the data.

    In data that is repeated, twins are as far apart everywhere. Of data in another order, a rank with `length` samples shares about
    one of `replicas` with another rank; half of that is asked for.
    """
    distances = {abs(index - other) for index, other in moved}
    return len(distances) < 2 or 2 * replicas * len(moved) < length


def _indices(rows: Mapping[int, set[int]]) -> dict[int, int]:
    """Return the index of each content that only one index has."""
    found: dict[int, list[int]] = {}
    for index, contents in rows.items():
        for row in contents:
            found.setdefault(row, []).append(index)
    return {row: indices[0] for row, indices in found.items() if len(indices) == 1}


def wrong_setting(loaders: Sequence[Loader], size: int) -> tuple[str, str]:
    """Return the evidence, to follow a sentence, and the fix, for two ranks of a group of `size`; empty without such a sampler."""
    if any("DistributedSampler" not in loader.info.samplers for loader in loaders):
        return "", ""
    first, second = (loader.info.sampling for loader in loaders)
    ranks = [loader.rank for loader in loaders]
    if first.num_replicas is not None and first.num_replicas != size:
        of = f"num_replicas={first.num_replicas}, but {size} ranks train together"
        both = f" (ranks {ranks[0]} and {ranks[1]} both have rank={first.rank})" if first.rank == second.rank else ""
        return f"; its sampler has {of}{both}", _FIX_SHARE
    if first.rank is not None and first.rank == second.rank:
        return f"; its sampler has rank={first.rank} on both", _FIX_SHARE
    if first.shuffle and first.seed != second.seed:
        return (
            f"; its sampler has seed={first.seed} on rank {ranks[0]} and seed={second.seed} on rank {ranks[1]}",
            _FIX_SEED,
        )
    marks = [{number: epoch.marks for number, epoch in loader.epochs.items()} for loader in loaders]
    for number in sorted(marks[0].keys() & marks[1].keys()):
        if first.shuffle and marks[0][number] != marks[1][number]:
            return f"; set_epoch got other numbers on rank {ranks[0]} than on rank {ranks[1]}", _FIX_EPOCH
    return "", _FIX_SHARE
