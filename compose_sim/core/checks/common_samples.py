"""Find samples that two readers have in common, by their indices or by hashes of their contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import GivenRows, StreamRead
from compose_sim.node.records.record import Place

_MIN_SHARE = 0.02
_MIN_SAMPLES = 3
_MIN_BATCHES, _MIN_SHARE_OF_PASS, _MAX_SHARE_OF_PASS, _MIN_OTHERS = 2, 0.08, 0.9, 0.2  # of passes over own batches
_MIN_COMMON, _MIN_SHARE_OF_STREAM, _IN_ORDER = 16, 0.25, 0.65  # of what two workers read


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
    return (common, fewer) if is_the_same or common > max(by_chance, _MIN_SHARE * fewer) else (0, fewer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTwice:
    """What two workers of one loader have in common of a stream."""

    read: StreamRead  # the first worker's
    other: int  # worker
    common: int
    of: int


def read_twice(observed: Observed) -> Iterator[ReadTwice]:
    """Yield loaders of which two workers read the same samples: all of them, or the first ones in nearly the same order."""
    for rank in observed:
        notes: dict[int, dict[int, StreamRead]] = {}
        for each in rank.of(StreamRead):
            notes.setdefault(each.loader, {})[each.worker] = each
        for by_worker in notes.values():
            for one, other in combinations(by_worker.values(), 2):
                if found := _in_common(one, other):
                    yield found
                    break


def _in_common(one: StreamRead, other: StreamRead) -> ReadTwice | None:
    others = {row: place for place, row in enumerate(other.rows)}
    ours, fewer = set(one.rows), min(len(one.rows), len(others))
    if one.whole and one.whole == other.whole and len(ours) >= _MIN_COMMON:
        return ReadTwice(read=one, other=other.worker, common=one.whole[0], of=one.whole[0])
    if len(ours) < len(one.rows) or len(others) < len(other.rows):
        return None  # equal by nature
    places = [others[row] for row in one.rows if row in others]  # draws from one pool are in another order
    is_alike = len(places) >= max(_MIN_COMMON, _MIN_SHARE_OF_STREAM * fewer) and _is_in_order(places)
    return ReadTwice(read=one, other=other.worker, common=len(places), of=fewer) if is_alike else None


def _is_in_order(places: Sequence[int]) -> bool:
    """Return whether most pairs are in order, as those of a stream that is only shuffled in a buffer."""
    pairs = list(combinations(places, 2))
    return sum(one < other for one, other in pairs) > _IN_ORDER * len(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOrders:
    """What ranks have in common that each go through a part of the rows in an order of their own."""

    ranks: tuple[int, ...]
    common: int  # of the rows in the passes of each two ranks, as are those below
    of: int
    at: Place | None


def own_orders(observed: Observed) -> OwnOrders | None:
    """
    Find ranks that trained on some rows in common in their first pass over the data, and on others that only one of them had.

    Rows that are drawn for each batch repeat on a rank about half as often as they meet on two; here, none repeats. What is common to
    the ends of two passes does not count: a batch of the next pass may repeat nothing either. Whole batches in common are those of a
    shard that goes round, and rows that a rank has in all passes are its own.
    """
    passes = {rank.rank: first_pass for rank in observed if len(first_pass := _first_pass(rank)) >= _MIN_BATCHES}
    found: list[tuple[int, int, int, int]] = []
    for one, other in combinations(passes, 2):
        ours, theirs = _rows_of(passes[one]), _rows_of(passes[other])
        if len(ours & theirs) <= _MAX_SHARE_OF_PASS * min(len(ours), len(theirs)):
            mine, others = (each[: len(each) - len(each) // 4] for each in (passes[one], passes[other]))
            ours, theirs = _rows_of(mine), _rows_of(others)
            common = sum(len(theirs.intersection(batch)) for batch in mine if not theirs.issuperset(batch))
            found.append((one, other, common, min(len(ours), len(theirs))))
    common, of = sum(each[2] for each in found), sum(each[3] for each in found)
    if common < max(_MIN_COMMON, _MIN_SHARE_OF_PASS * of):
        return None
    ranks = {rank for one, other, *_ in found for rank in (one, other)}
    at = next((each.at for each in observed.of(GivenRows)), None)
    return OwnOrders(ranks=tuple(sorted(ranks)), common=common, of=of, at=at)


def _first_pass(rank: RankObserved) -> list[tuple[int, ...]]:
    """Return the batches of the first pass; none if no row is seen again, so that its end is unknown, or if later rows are the same."""
    batches: list[tuple[int, ...]] = []
    later: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for each in rank.of(GivenRows):
        if (later or batches or [()])[-1] == each.rows:
            continue  # another forward pass with the same batch
        if len(set(each.rows)) < len(each.rows):
            return []
        if later or seen.intersection(each.rows):
            later.append(each.rows)
        else:
            batches.append(each.rows)
            seen.update(each.rows)
    again = _rows_of(later)
    return batches if len(again - seen) > _MIN_OTHERS * len(again) else []


def _rows_of(batches: Sequence[Sequence[int]]) -> set[int]:
    return {row for batch in batches for row in batch}


def compare_indices(
    ours: Mapping[int, set[int]], theirs: Mapping[int, set[int]], replicas: int
) -> tuple[tuple[int, int] | None, int] | None:
    """
    Return the indices of one sample on both ranks, and how many samples have moved likewise; None unless that is proven.

    The contents of equal indices are compared, or else the indices of equal contents, which may occur twice in right data too. If the
    ranks have no sample in common, there are no such indices, and the indices that both had are counted.
    """
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
    proven = len(other) >= _MIN_SAMPLES or not (meet or _may_be_twins(moved, len(ours), replicas))
    if proven and len(moved) >= _MIN_SAMPLES and 2 * len(moved) > len(shared):
        return moved[0], len(moved)
    if len(both) >= 2 * _MIN_SAMPLES and set().union(*ours.values()).isdisjoint(set().union(*theirs.values())):
        return None, len(both)
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
