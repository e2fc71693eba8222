"""Count the samples that two ranks both saw in the same epochs: by index if their data are the same, else by content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from compose_sim.core.checks import Case
from compose_sim.core.checks.evidence.epochs import (
    Epoch,
    Loader,
    Pair,
    drew_random,
    indices_of,
    pairs,
    rows_of,
    shared_epochs,
    training_loaders,
)
from compose_sim.node.records.data import Batch, TrainingForward

_LEAST_SHARE = 0.02
_TOO_FEW_ROWS = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSamples:
    """What two ranks have in common: `common` of the `of` samples of the rank with fewer, first in this epoch."""

    common: int
    of: int
    epoch: int
    by: str  # index or content

    @property
    def is_overlap(self) -> bool:
        return self.common >= 2


def compare(case: Case, left: Loader, right: Loader) -> CommonSamples | None:
    """Return what the epochs of two ranks have in common; None if that cannot be decided."""
    found = [_compare_epoch(case, left, right, *epochs) for epochs in shared_epochs(left, right)]
    decided = [each for each in found if each is not None]
    return next((each for each in decided if each.is_overlap), decided[0] if decided else None)


def compare_all(case: Case, by_rank: Mapping[int, Loader]) -> dict[Pair, CommonSamples]:
    """Return what pairs of ranks with this loader have in common, as far as it can be decided."""
    both = [pair for pair in pairs(case, by_rank) if set(pair) <= by_rank.keys()]
    found = {pair: compare(case, by_rank[pair[0]], by_rank[pair[1]]) for pair in both}
    return {pair: each for pair, each in found.items() if each is not None}


def pairs_with_the_same(case: Case) -> list[Pair]:
    """Return the pairs of ranks that trained on the same samples."""
    compared = [compare_all(case, by_rank) for by_rank in training_loaders(case)]
    return [pair for each in compared for pair, common in each.items() if common.is_overlap]


def overlap(left: Sequence[object], right: Sequence[object], *, unique: bool = False) -> tuple[int, int]:
    """
    Return how many of how many samples are in both; none if that may be chance.

    Independent draws from one pool have about twice as much in common as each has repetitions, with a spread of about the square root.
    So do rows that are equal by nature. If samples are `unique` and neither side repeats one, nothing in common is chance.
    """
    ours, theirs = set(left), set(right)
    fewer = min(len(ours), len(theirs))
    common = len(ours & theirs)
    repeated = max(len(left) - len(ours), len(right) - len(theirs))
    by_chance = 0.0 if unique and not repeated else 2 * (repeated + 2 * repeated**0.5 + 3)
    is_the_same = list(left) == list(right)
    return (common, fewer) if is_the_same or common > max(by_chance, _LEAST_SHARE * fewer) else (0, fewer)


def _compare_epoch(case: Case, left: Loader, right: Loader, ours: Epoch, theirs: Epoch) -> CommonSamples | None:
    if not (ours.trained or theirs.trained):
        return None
    first, second = _without_padding(ours), _without_padding(theirs)
    lone = len(first) == 1 or len(second) == 1
    indices, others = indices_of(first), indices_of(second)
    random = drew_random(case, left) or drew_random(case, right)
    by_content = _by_content(first, second)
    if left.data == right.data and indices is not None and others is not None:
        common, of = overlap(indices, others, unique=_draws_once(left, min(len(indices), len(others))))
        if common and random is not True and _contradicted(first, second):
            common = 0  # the same indices are other samples on each rank
        by, same_order = "index", indices == others
    elif by_content is not None and not (random and not by_content[0]):
        (common, of), by, same_order = by_content, "content", rows_of(first) == rows_of(second)
    else:
        return None
    if lone and common < 0.5 * of:
        common = 0  # the second round of a small data set is nothing but padding
    if common and same_order and _sliced(case, left, right, ours, theirs):
        common = 0
    if common:  # count the last batch too
        samples = [indices_of(epoch.batches) if by == "index" else rows_of(epoch.batches) for epoch in (ours, theirs)]
        common, of = _count(*(set(each or ()) for each in samples))
    return CommonSamples(common=common, of=of, epoch=ours.number, by=by)


def _count(ours: Set[int], theirs: Set[int]) -> tuple[int, int]:
    return len(ours & theirs), min(len(ours), len(theirs))


def _draws_once(loader: Loader, count: int) -> bool:
    """Return whether a sampler that has repeated nothing in `count` draws never repeats anything."""
    sampling, length = loader.info.sampling, loader.info.length or 0
    if sampling.replacement:
        return False
    known = {"DistributedSampler", "SequentialSampler"} & set(loader.info.samplers)
    # With replacement, about three samples would have been repeated by now.
    return sampling.replacement is not None or bool(known) or count * count >= 6 * length


def _without_padding(epoch: Epoch) -> list[Batch]:
    """Leave out an epoch's last batch, which may repeat samples so that all ranks have equally many."""
    return epoch.batches[:-1] if epoch.exhausted and len(epoch.batches) > 1 else epoch.batches


def _by_content(first: Sequence[Batch], second: Sequence[Batch]) -> tuple[int, int] | None:
    shapes = {batch.shape for batch in (*first, *second) if batch.rows}
    ours, theirs = rows_of(first), rows_of(second)
    if not ours or not theirs or (len(shapes) > 1 and not set(ours) & set(theirs)):
        return None
    return overlap(ours, theirs)


def _contradicted(first: Sequence[Batch], second: Sequence[Batch]) -> bool:
    """Return whether most samples with the same index have other contents."""
    ours, theirs = _by_index(first), _by_index(second)
    comparable = [index for index in ours.keys() & theirs.keys() if ours[index][1] == theirs[index][1]]
    equal = sum(ours[index] == theirs[index] for index in comparable)
    return bool(comparable) and equal < len(comparable) / 2


def _by_index(batches: Sequence[Batch]) -> dict[int, tuple[int, int | None]]:
    return {
        index: (row, batch.shape)
        for batch in batches
        if batch.rows and batch.indices and len(batch.rows) == len(batch.indices)
        for index, row in zip(batch.indices, batch.rows, strict=True)
    }


def _sliced(case: Case, left: Loader, right: Loader, ours: Epoch, theirs: Epoch) -> bool:
    """Return whether both load the same batches, but each trains on a part of them only."""
    mine, others = _fed(case, left, ours), _fed(case, right, theirs)
    if not mine or not others:
        return False
    common, of = overlap([row for rows in mine for row in rows], [row for rows in others for row in rows])
    if common > of / 2:
        return False
    batches = [len(batch.rows) for batch in ours.batches if batch.rows]
    given = sum(map(len, mine)) / len(mine)
    fewer_rows = bool(batches) and given < _TOO_FEW_ROWS * sum(batches) / len(batches)
    return fewer_rows or ours.forwards < _TOO_FEW_ROWS * (ours.fetched - 1)


def _fed(case: Case, loader: Loader, epoch: Epoch) -> list[tuple[int, ...]]:
    """Return the rows of each batch that the model was given in this epoch."""
    forwards = case.observed.ranks[loader.rank].of(TrainingForward)
    return [
        each.rows for each in forwards if each.rows and (each.loader, each.epoch) == (loader.info.loader, epoch.number)
    ]
