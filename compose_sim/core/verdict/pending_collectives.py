"""Read what torch's flight recorder holds of stalled ranks: collectives that were issued and have not completed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import basename
from typing import Any

_SIZES_AGREE = ("all_reduce", "broadcast", "reduce")
_PEERS = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCollective:
    """One collective or message that a rank has issued; `number` counts those of the group."""

    op: str
    number: int
    group: str
    ranks: tuple[int, ...] = ()
    sizes: str = ""
    at: tuple[str, int] | None = None

    def describe(self, at: tuple[str, int] | None) -> str:
        """Return `all_reduce #13 (train.py, line 11)`; `at` is the line at which the rank waits, for when its own is unknown."""
        place = self.at or at
        number = "" if _PEERS.fullmatch(self.op) else f" #{self.number}"
        return f"{self.op}{number}" + (f" ({basename(place[0])}, line {place[1]})" if place else "")

    def describe_with_sizes(self) -> str:
        """Return `all_reduce #13 of [[4]] (train.py, line 11)`; a barrier has no size, but some backends send a tensor for it."""
        sizes = "" if self.op == "barrier" or not self.sizes.strip("[]") else f" of {self.sizes}"
        return f"{self.op} #{self.number}{sizes}" + self.describe(None).partition(f"#{self.number}")[2]

    def is_answered_by(self, other: PendingCollective) -> bool:
        """Return whether another rank has issued what belongs to this one."""
        mine, theirs = _PEERS.fullmatch(self.op), _PEERS.fullmatch(other.op)
        if mine and theirs:
            return mine[1] != theirs[1] and {mine[2], mine[3]} == {theirs[2], theirs[3]}
        same_size = self.op not in _SIZES_AGREE or self.sizes == other.sizes
        return (self.op, self.group, self.number) == (other.op, other.group, other.number) and same_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the flight recorder of one rank holds; empty if torch recorded nothing."""

    on_device: bool = False  # collectives run on a GPU
    pending: tuple[PendingCollective, ...] = ()  # the oldest ones
    reached: Mapping[str, int] = field(default_factory=dict)  # the number of the last collective, by group
    recent: tuple[PendingCollective, ...] = ()  # the last ones that were issued


def recorded_in(stall: Mapping[str, Any]) -> Recorded:
    """Return what the `stalled` event of a rank contains."""
    return Recorded(
        on_device=bool(stall.get("on_device")),
        pending=tuple(map(_pending, stall.get("pending") or ())),
        reached=stall.get("reached") or {},
        recent=tuple(map(_pending, stall.get("recent") or ())),
    )


def may_be_computed(ranks: Mapping[int, Recorded]) -> bool:
    """
    Return whether a GPU may be working: a collective is pending that all of its ranks have issued.

    It has to wait for the kernels before it, however long they take.
    """
    return any(
        recorded.on_device and _is_complete(each, rank, ranks)
        for rank, recorded in ranks.items()
        for each in recorded.pending
    )


def first_difference(ranks: Mapping[int, Recorded]) -> tuple[int, PendingCollective, int, PendingCollective] | None:
    """
    Return two ranks that have issued different collectives in the same place of a group, with these; the earliest ones.

    NCCL does not notice: it may complete the first of them, with wrong values, and hang in a later one.
    """
    known: dict[tuple[str, int], tuple[int, PendingCollective]] = {}
    found: list[tuple[int, PendingCollective, int, PendingCollective]] = []
    for rank, recorded in ranks.items():
        for each in recorded.recent if recorded.on_device else ():
            other, its = known.setdefault((each.group, each.number), (rank, each))
            if not each.is_answered_by(its):
                found.append((other, its, rank, each))
    return min(found, key=lambda pair: pair[1].number, default=None)


def _is_complete(wanted: PendingCollective, rank: int, ranks: Mapping[int, Recorded]) -> bool:
    if _PEERS.fullmatch(wanted.op):
        others = (each for other, recorded in ranks.items() if other != rank for each in recorded.pending)
        return any(wanted.is_answered_by(each) for each in others)
    return bool(wanted.ranks) and all(
        member in ranks and _has_issued(wanted, ranks[member]) for member in wanted.ranks if member != rank
    )


def _has_issued(wanted: PendingCollective, recorded: Recorded) -> bool:
    same = [
        each
        for each in (*recorded.pending, *recorded.recent)
        if (each.group, each.number) == (wanted.group, wanted.number)
    ]
    if same:
        return any(wanted.is_answered_by(each) for each in same)
    return recorded.reached.get(wanted.group, 0) >= wanted.number


def _pending(values: Mapping[str, Any]) -> PendingCollective:
    at = values.get("at")
    return PendingCollective(
        op=str(values.get("op") or "collective"),
        number=int(values.get("number") or 0),
        group=str(values.get("group") or ""),
        ranks=tuple(values.get("ranks") or ()),
        sizes=str(values.get("sizes") or ""),
        at=(at[0], at[1]) if at else None,
    )
