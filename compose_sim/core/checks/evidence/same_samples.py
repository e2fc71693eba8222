"""How many samples did two ranks both see in the same epochs? By index where the data are the same, else by content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compose_sim.core.checks import Case
from compose_sim.core.checks.evidence.epochs import Epoch, Loader, drew_random, shared_epochs
from compose_sim.core.events.observations import Observation

_LEAST_SHARE = 0.02
_TOO_FEW_ROWS = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What two ranks have in common: so many of the fewer samples, first in this epoch; `by` what they were told apart."""

    common: int
    of: int
    epoch: int
    by: str
    whole: bool = False  # the very same samples in the very same order

    @property
    def is_overlap(self) -> bool:
        return self.common >= 2


def compare(case: Case, left: Loader, right: Loader) -> Common | None:
    """What the epochs of two ranks have in common; None where nothing can be said."""
    found = [_compare_epoch(case, left, right, *epochs) for epochs in shared_epochs(left, right)]
    said = [each for each in found if each is not None]
    overlaps = [each for each in said if each.is_overlap]
    return overlaps[0] if overlaps else said[0] if said else None


def overlap(left: Sequence[object], right: Sequence[object], *, unique: bool = False) -> tuple[int, int]:
    """
    How many of how many are in both, or none where that may be chance.

    Independent draws from one pool have about twice as much in common as each has repetitions, give or take their chance; so do
    rows that are equal by nature. Where samples are `unique` and nobody repeats one, what is common is no chance.
    """
    ours, theirs = set(left), set(right)
    fewer = min(len(ours), len(theirs))
    common = len(ours & theirs)
    repeated = max(len(left) - len(ours), len(right) - len(theirs))
    by_chance = 0.0 if unique and not repeated else 2 * (repeated + 2 * repeated**0.5 + 3)
    is_the_same = list(left) == list(right)
    return (common, fewer) if is_the_same or common > max(by_chance, _LEAST_SHARE * fewer) else (0, fewer)


def _compare_epoch(case: Case, left: Loader, right: Loader, ours: Epoch, theirs: Epoch) -> Common | None:
    if not (ours.trained or theirs.trained):
        return None
    first, second = _without_padding(ours), _without_padding(theirs)
    lone = len(first) == 1 or len(second) == 1
    indices, others = ours.indices(first), theirs.indices(second)
    random = drew_random(case, left) or drew_random(case, right)
    by_content = _by_content(first, second)
    if left.data == right.data and indices is not None and others is not None:
        common, of = overlap(indices, others, unique=_draws_once(left, min(len(indices), len(others))))
        if common and random is not True and _contradicted(first, second):
            common = 0  # the same numbers mean other samples on each rank
        by = "index"
    elif by_content is not None and not (random and not by_content[0]):
        (common, of), by, indices, others = by_content, "content", None, None
    else:
        return None
    if lone and common < 0.5 * of:
        common = 0  # padding is all of a small data set's second round
    same_order = indices == others if indices is not None else _rows(first) == _rows(second)
    if common and same_order and _sliced(case, left, right, ours, theirs):
        common = 0
    return Common(common=common, of=of, epoch=ours.number, by=by, whole=same_order)


def _draws_once(loader: Loader, count: int) -> bool:
    """Whether a sampler that has repeated nothing among so many draws is one that never does."""
    sampling, length = loader.facts["sampling"] or {}, loader.facts["length"] or 0
    if sampling.get("replacement"):
        return False
    known = "replacement" in sampling or {"DistributedSampler", "SequentialSampler"} & set(
        loader.facts["samplers"] or ()
    )
    return bool(known) or count * count >= 6 * length  # else three would have been repeated by now


def _without_padding(epoch: Epoch) -> list[Observation]:
    """An epoch's last batch may repeat samples so that all ranks have equally many."""
    return epoch.batches[:-1] if epoch.exhausted and len(epoch.batches) > 1 else epoch.batches


def _rows(batches: Sequence[Observation]) -> list[int]:
    return [row for batch in batches for row in batch["rows"] or ()]


def _by_content(first: Sequence[Observation], second: Sequence[Observation]) -> tuple[int, int] | None:
    shapes = {batch["shape"] for batch in (*first, *second) if batch["rows"]}
    ours, theirs = _rows(first), _rows(second)
    if not ours or not theirs or (len(shapes) > 1 and not set(ours) & set(theirs)):
        return None
    return overlap(ours, theirs)


def _contradicted(first: Sequence[Observation], second: Sequence[Observation]) -> bool:
    """Whether most samples with the same index hold something else."""
    ours, theirs = _by_index(first), _by_index(second)
    comparable = [index for index in ours.keys() & theirs.keys() if ours[index][1] == theirs[index][1]]
    equal = sum(ours[index] == theirs[index] for index in comparable)
    return bool(comparable) and equal < len(comparable) / 2


def _by_index(batches: Sequence[Observation]) -> dict[int, tuple[int, int]]:
    return {
        index: (row, batch["shape"])
        for batch in batches
        if batch["rows"] and batch["indices"] and len(batch["rows"]) == len(batch["indices"])
        for index, row in zip(batch["indices"], batch["rows"], strict=True)
    }


def _sliced(case: Case, left: Loader, right: Loader, ours: Epoch, theirs: Epoch) -> bool:
    """Whether both load the same batches, and each trains on its part of them only."""
    fed = [_fed(case, loader, epoch) for loader, epoch in ((left, ours), (right, theirs))]
    if not all(fed):
        return False
    mine, others = (_rows(each) for each in fed)
    common, of = overlap(mine, others)
    if common > of / 2:
        return False
    batches = [len(batch["rows"]) for batch in ours.batches if batch["rows"]]
    given = [len(each["rows"]) for each in fed[0]]
    fewer_rows = bool(batches) and sum(given) / len(given) < _TOO_FEW_ROWS * sum(batches) / len(batches)
    forwards = max(int(ours.facts.get("forwards") or 0), *(int(batch["forwards"] or 0) for batch in ours.batches))
    return fewer_rows or forwards < _TOO_FEW_ROWS * (ours.fetched - 1)


def _fed(case: Case, loader: Loader, epoch: Epoch) -> list[Observation]:
    fed = [each for each in case.observed.ranks[loader.rank].of("fed") if each["rows"]]
    return [each for each in fed if (each["loader"], each["epoch"]) == (loader.facts["loader"], epoch.number)]
