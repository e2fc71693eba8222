"""Order what two ranks did by the collectives between them; nothing else orders ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TypeVar

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.models import DdpModel
from compose_sim.node.records.process_groups import Collective, DdpForward, UntrackedWait
from compose_sim.node.records.record import Record

A = TypeVar("A", bound=Record)
Key = tuple[tuple[int, ...], str]


class HappensBefore:
    """
    What each rank knew about the progress of the others through collectives: a vector clock.

    After a collective, each participating rank is later than everything that any of them did before. Beyond the point at which
    the ranks' collectives no longer match, nothing is known.
    """

    def __init__(self, observed: Observed) -> None:
        """Follow the collectives of all ranks, in an order in which they can have happened."""
        collectives = {
            rank.rank: [each for each in rank.of(Collective, DdpForward, DdpModel) if _synchronizes(each)]
            for rank in observed
        }
        self._indices = {rank: [each.index for each in issued] for rank, issued in collectives.items()}
        self._untracked = {rank.rank: {self._interval(each) for each in rank.of(UntrackedWait)} for rank in observed}
        self._clocks: dict[int, list[dict[int, int]]] = {rank: [{}] for rank in collectives}
        self._follow({rank: list(map(_key, issued)) for rank, issued in collectives.items()})

    def _interval(self, record: Record) -> int:
        """Return how many collectives the rank had issued."""
        return bisect_left(self._indices[record.rank], record.index)

    def _follow(self, ahead: dict[int, list[Key]]) -> None:
        waiting: dict[Key, list[int]] = {}
        ready = list(ahead)
        while ready:
            rank = ready.pop()
            done = len(self._clocks[rank]) - 1
            if done >= len(ahead[rank]):
                continue
            key = ahead[rank][done]
            there = waiting.setdefault(key, [])
            there.append(rank)
            members = [member for member in key[0] if member in ahead]
            if len(there) == len(members):
                self._meet(waiting.pop(key))
                ready += members

    def _meet(self, members: list[int]) -> None:
        known: dict[int, int] = {}
        for member in members:
            clock = {**self._clocks[member][-1], member: len(self._clocks[member])}
            for rank, count in clock.items():
                known[rank] = max(known.get(rank, 0), count)
        for member in members:
            self._clocks[member].append(known)

    def may_overlap(self, one: Record, other: Record) -> bool:
        """Return whether either may have happened first, as far as can be seen: nothing between them orders them."""
        first, second = self._interval(one), self._interval(other)
        clocks = self._clocks
        if first >= len(clocks[one.rank]) or second >= len(clocks[other.rank]):
            return False
        if first in self._untracked[one.rank] or second in self._untracked[other.rank]:
            return False  # a message, a store, a lock
        one_first = clocks[other.rank][second].get(one.rank, 0) > first
        other_first = clocks[one.rank][first].get(other.rank, 0) > second
        return not one_first and not other_first

    def overlapping(self, one: Record, others: Sequence[A]) -> Iterator[A]:
        """Yield those of `others`, which are records of one rank in order, that `may_overlap` with `one`."""
        first, clocks = self._interval(one), self._clocks
        if not others or first >= len(clocks[one.rank]):
            return
        rank = others[0].rank
        # All before these have happened before, and once one has happened after, all that follow have.
        start = bisect_left(others, clocks[one.rank][first].get(rank, 0), key=self._interval)
        for place in range(start, len(others)):
            other = others[place]
            second = self._interval(other)
            if second >= len(clocks[rank]) or clocks[rank][second].get(one.rank, 0) > first:
                return
            if self.may_overlap(one, other):
                yield other


def _synchronizes(each: Record) -> bool:
    return not isinstance(each, DdpModel) or each.init_sync  # it compares the shapes of parameters over its ranks


def _key(each: Collective | DdpForward | DdpModel) -> Key:
    group = each.ranks if isinstance(each, DdpModel) else each.group
    return group or (each.rank,), each.name if isinstance(each, Collective) else ""
