"""Find epochs that go on in their middle after a resumption, and the samples that both of their parts, or neither, trained on.

Only a passage over a loader that is shorter than an epoch goes on: what draws a whole epoch again has rightly started it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from compose_sim.core.checks import where
from compose_sim.core.checks.epochs import WRITTEN, Epoch, Loader, loaders_of, read_between
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.text import format_count
from compose_sim.node.records.data import RandomDraws
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import OptimizerStep, TensorHashes, TensorTable
from compose_sim.node.records.record import Place

# Batches of all ranks. A checkpoint may be written a little later than its state was copied, and batches are fetched ahead.
_MIN_AGAIN = 3
_MIN_LEFT = 2  # the ends of both parts may be dropped
_MIN_SHARE, _MAX_SHARED = 0.9, 0.1  # of samples
_MIN_BY_CHANCE = 8  # samples that two parts should have in common if one did not depend on the other
How = Literal["repeated", "left out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """An epoch whose second part is not what its first part has left over."""

    how: How
    samples: int
    of: int  # samples of a whole epoch
    taken: int  # batches of a rank in the first part
    read: FileUse | None  # the checkpoint
    at: Place | None
    data: str


def explained(found: Resumed) -> str:
    """Return the evidence as a sentence."""
    count = format_count(found.samples, "sample")
    what = f"drew {count} again that had been trained on before" if found.how == "repeated" else f"left out {count}"
    since = f"from {found.read.path.rpartition('/')[2]}{where(found.read.at)} " if found.read else ""
    return (
        f"an epoch of {format_count(found.of, 'sample')}, which was resumed {since}after {found.taken} batches of each rank, "
        f"{what}, in the loader of {found.data}{where(found.at)}"
    )


class _Passage(NamedTuple):
    """One pass of a rank over a loader."""

    loader: Loader
    epoch: Epoch

    def samples(self, *, by_row: bool) -> list[tuple[int, ...]] | None:
        """Return the samples of each batch; None unless all were recorded, and each was drawn once."""
        found = [(each.rows if by_row else each.indices) or () for each in self.epoch.batches]
        drawn = [sample for batch in found for sample in batch]
        fewest = len(drawn) - max(map(len, found), default=0)  # padding repeats a few
        info = self.loader.info
        whole = len(found) == max(self.epoch.last.batches, 1) and all(found) and info.threshold is None
        return found if whole and len(set(drawn)) >= fewest and not info.sampling.replacement else None


_Passages = Mapping[int, _Passage]  # by rank


@dataclass(frozen=True, slots=True)
class _Point:
    """How far a passage had come when what is loaded later was saved: batches that had surely been trained on."""

    passage: int
    trained: int
    is_certain: bool = True  # if not, what a file holds may be older than the file


def resumed_epochs(observed: Observed) -> Iterator[Resumed]:
    """Yield the epochs that are resumed wrongly."""
    lists = {rank.rank: _trained_passages(rank) for rank in observed}
    if not lists or len({len(each) for each in lists.values()}) > 1:
        return
    together: list[_Passages] = [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]
    together = [each for each in together if len({passage.loader.data for passage in each.values()}) == 1]
    if len(together) < len(next(iter(lists.values()))):
        return  # ranks train on different data
    for later in range(1, len(together)):
        read = _read_before(observed, together, later)
        point = _point(observed, together, later, read)
        if point is None:
            continue
        found = _judge(observed, together, point, later)
        if found:
            how, samples, of = found
            loader = _first(together[point.passage])
            yield Resumed(
                how=how,
                samples=samples,
                of=of,
                taken=point.trained,
                read=read,
                at=loader.place,
                data=loader.info.data,
            )


def _trained_passages(rank: RankObserved) -> list[_Passage]:
    every = (_Passage(loader, epoch) for loader in loaders_of(rank) for epoch in loader.epochs.values())
    trained = (each for each in every if each.epoch.trained and each.epoch.batches)
    return sorted(trained, key=lambda each: each.epoch.begun)


def _read_before(observed: Observed, together: Sequence[_Passages], later: int) -> FileUse | None:
    pairs = ((rank, together[later - 1][rank].epoch, it.epoch) for rank, it in together[later].items())
    reads = (read_between(observed, rank, before.batches[-1].index, after.begun) for rank, before, after in pairs)
    return next(filter(None, reads), None)


def _point(observed: Observed, together: Sequence[_Passages], later: int, read: FileUse | None) -> _Point | None:
    """Return the point from which training goes on: by the time of writing the file, and by the weights; None if it did not stop."""
    first = observed.ranks[min(observed.ranks)]
    numbers = [
        next((each.optimizer for each in first.of(OptimizerStep) if each.index > it[first.rank].epoch.begun), None)
        for it in together[later - 1 : later + 1]
    ]
    anew = None not in numbers and numbers[0] != numbers[1]
    if read is None and not anew:
        return None
    points = []
    if read is not None:
        saved = max(
            (
                each
                for each in observed.of(FileUse)
                if each.op in WRITTEN and (each.to or each.path) == read.path and each.t <= read.t
            ),
            key=lambda each: each.t,
            default=None,
        )
        points.append(_point_at(observed.ranks[saved.rank], together, saved.index) if saved else None)
    same = _same_weights(first, together, later)
    if same is not None:
        points.append(_point_at(first, together, same))
    elif read is None:
        points.append(_point_at(first, together, together[later][first.rank].epoch.begun) if anew else None)
    if None in points or len({each.passage for each in points if each}) != 1:
        return None
    earliest = min((each for each in points if each), key=lambda each: each.trained)
    return replace(earliest, is_certain=same is not None or read is None)


def _point_at(rank: RankObserved, together: Sequence[_Passages], index: int) -> _Point | None:
    """Return how far the rank was before this record; None if that was not in the middle of an epoch."""
    passages = [each[rank.rank].epoch for each in together]
    number = max((at for at, each in enumerate(passages) if each.begun < index), default=None)
    if number is None:
        return None
    passage = passages[number]
    taken = [each for each in passage.batches if each.index < index]
    step = max((each.index for each in rank.of(OptimizerStep) if each.index < index), default=-1)
    trained = sum(each.index < step for each in taken)
    if passage.last.forwards:  # some batches may have been fetched ahead
        trained = min(trained, passage.last.forwards)
    is_over = passage.exhausted and len(taken) == len(passage.batches)
    return _Point(number, trained) if trained and not is_over else None


def _same_weights(rank: RankObserved, together: Sequence[_Passages], later: int) -> int | None:
    """Return the record of the last time, before a passage begins, that parameters were those with which it begins."""
    tables: dict[tuple[int, int], TensorTable] = {}
    found: list[tuple[int, tuple[str | None, ...]]] = []
    for each in rank.of(TensorTable, TensorHashes):
        if isinstance(each, TensorTable):
            tables[each.optimizer, each.table] = each
        elif (table := tables.get((each.optimizer, each.table))) and len(table.rows) == len(each.hashes):
            pairs = zip(table.rows, each.hashes, strict=True)
            found.append((each.index, tuple(hashed for row, hashed in pairs if row.kind == "parameter")))
    begun = together[later][rank.rank].epoch.begun
    start = next((hashes for index, hashes in found if index > begun), ())
    known = any(each is not None for each in start)
    return max((index for index, hashes in found if index < begun and known and hashes == start), default=None)


def _judge(observed: Observed, together: Sequence[_Passages], point: _Point, later: int) -> tuple[How, int, int] | None:
    """Return what is wrong with the second part of an epoch, for how many samples, and of how many."""
    for by_row in (False, True):
        first, second = (_steps(together[number], by_row=by_row) for number in (point.passage, later))
        others = {
            number: steps
            for number, each in enumerate(together)
            if (by_row or _first(each).data == _first(together[later]).data) and (steps := _steps(each, by_row=by_row))
        }
        if not first or not second or not {point.passage, later} <= others.keys():
            continue
        if not by_row and _is_other_data(observed, [together[number] for number in others]):
            continue
        wholes = [
            number for number in others if number not in (point.passage, later) and _is_exhausted(together[number])
        ]
        sets = {number: set[int]().union(*others[number]) for number in wholes}
        whole = max(sets.values(), key=len, default=set[int]())
        if any(len(each) + _size_of_batch(first) < len(whole) for each in sets.values()):
            continue  # as in a curriculum: how long this epoch should have been is not known
        length = _first(together[later]).info.length
        size = len(whole) or (0 if by_row else length or 0)
        since = max((number for number in wholes if number < later), default=-1)
        seen = set[int]().union(*(set().union(*others[it]) for it in others if since < it < later))
        is_direct = all(it in others for it in range(since + 1, later)) and point.passage > since
        parts = _Parts(
            first=first[: point.trained],
            second=second,
            exhausted=_is_exhausted(together[later]),
            whole=whole,
            size=size,
            seen=seen if is_direct else None,
        )
        return parts.again(of_ranks=0 if point.is_certain else observed.world_size) or parts.skipped()
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Both parts of an epoch, of all ranks together, by batch."""

    first: list[set[int]]  # what was surely trained on
    second: list[set[int]]
    exhausted: bool  # the second part
    whole: set[int]  # another epoch; empty if there is none
    size: int  # of a whole epoch
    seen: set[int] | None  # all that was taken since the last whole epoch; None if it is not known

    @property
    def batch(self) -> int:
        return _size_of_batch((*self.first, *self.second))

    @property
    def drawn(self) -> set[int]:
        return set[int]().union(*self.second)

    def again(self, *, of_ranks: int) -> tuple[How, int, int] | None:
        """Return how many samples were repeated: the end of the first part, and only that; `of_ranks` if each counted its own only."""
        shares = [len(each & self.drawn) / len(each) for each in self.first]
        begins = next((at for at, share in enumerate(shares) if share >= 0.5), 0)
        if not begins or len(shares) - begins < _MIN_AGAIN or any(share < _MIN_SHARE for share in shares[begins + 1 :]):
            return None
        kept, again = (set[int]().union(*each) for each in (self.first[:begins], self.first[begins:]))
        if len(kept & self.drawn) > self.batch:
            return None
        if of_ranks and abs(len(kept) * of_ranks - len(kept | again)) >= self.batch:
            return None
        if self.exhausted:  # it draws all but what was before the repeated batches
            goes_on = abs(len(self.drawn) + len(kept) - self.size) <= 2 * self.batch and len(self.drawn) < self.size
        else:
            early = set[int]().union(*self.second[: len(self.first) - begins + 1])
            goes_on = len(again & early) >= _MIN_SHARE * len(again)
        return ("repeated", len(again & self.drawn), self.size) if goes_on else None

    def skipped(self) -> tuple[How, int, int] | None:
        """Return how many samples of a whole epoch neither part has: the second goes on too late."""
        before = set[int]().union(*self.first)
        if not self.exhausted or not self.whole or self.seen is None:
            return None
        if len(before & self.drawn) > _MAX_SHARED * min(len(before), len(self.drawn)):
            return None
        is_of_whole = all(len(each & self.whole) >= _MIN_SHARE * len(each) for each in (before, self.drawn))
        if len(before) * len(self.drawn) / self.size < _MIN_BY_CHANCE or not is_of_whole:
            return None
        left = len(self.whole - self.seen - self.drawn)
        # Samples may be left out on purpose. A position that is advanced by too much is a multiple of the right one.
        is_multiple = abs(left - round(left / len(before)) * len(before)) <= self.batch / 2
        return ("left out", left, self.size) if left >= _MIN_LEFT * self.batch and is_multiple else None


def _size_of_batch(steps: Sequence[set[int]]) -> int:
    return max(map(len, steps))


def _steps(passages: _Passages, *, by_row: bool) -> list[set[int]] | None:
    """Return the samples of each batch of all ranks together; None if they are not known, or drawn with replacement."""
    by_rank = [each.samples(by_row=by_row) for each in passages.values()]
    known = [each for each in by_rank if each]
    if len(known) < len(by_rank):
        return None
    count = max(map(len, known))
    return [{sample for each in known for sample in (each[at] if at < len(each) else ())} for at in range(count)]


def _first(passages: _Passages) -> Loader:
    return next(iter(passages.values())).loader


def _is_exhausted(passages: _Passages) -> bool:
    return all(each.epoch.exhausted for each in passages.values())


def _is_other_data(observed: Observed, together: Sequence[_Passages]) -> bool:
    """Return whether an index may be another sample in each passage: that of a part of the data, or of data made anew."""
    if any(each.loader.info.subset for it in together for each in it.values()):
        return True
    if any(each.states for each in observed.of(RandomDraws)):
        return False  # what is random in a sample hides that it is the same
    contents = [
        {
            index: row
            for passage in each.values()
            for batch in passage.epoch.batches
            if batch.rows and batch.indices and len(batch.rows) == len(batch.indices)
            for index, row in zip(batch.indices, batch.rows, strict=True)
        }
        for each in together
    ]
    for ours, theirs in pairwise(contents):
        both = ours.keys() & theirs.keys()
        if both and 2 * sum(ours[each] == theirs[each] for each in both) < len(both):
            return True
    return False
