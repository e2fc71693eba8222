"""Which of two things that two ranks did came first? Known where a collective lies between them, and only there."""

from __future__ import annotations

from bisect import bisect_left

from compose_sim.core.events.observations import Observation, Observed

Key = tuple[tuple[int, ...], str]


class Order:
    """
    What each rank knew of the others' progress, by its collectives: a vector clock.

    After a collective, each of its ranks has come after all that any of them did before it. Beyond the place where the ranks'
    collectives no longer match, nothing is known.
    """

    def __init__(self, observed: Observed) -> None:
        """Follow the collectives of all ranks, in the order in which they can have happened."""
        self._observed = observed
        self._places = {rank.rank: [each.index for each in rank.of("collective")] for rank in observed}
        self._loose = {
            rank.rank: {self._interval(rank.rank, each.index) for each in rank.of("loose")} for rank in observed
        }
        self._clocks: dict[int, list[dict[int, int]]] = {rank.rank: [{}] for rank in observed}
        self._follow()

    def _interval(self, rank: int, index: int) -> int:
        """How many collectives the rank had issued."""
        return bisect_left(self._places[rank], index)

    def _follow(self) -> None:
        ahead = {rank.rank: [_key(each) for each in rank.of("collective")] for rank in self._observed}
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

    def is_open(self, one: Observation, other: Observation) -> bool:
        """Whether either of the two may have come first, as far as can be seen: nothing lies between them that orders them."""
        first, second = self._interval(one.rank, one.index), self._interval(other.rank, other.index)
        clocks = self._clocks
        if first >= len(clocks[one.rank]) or second >= len(clocks[other.rank]):
            return False
        if first in self._loose[one.rank] or second in self._loose[other.rank]:
            return False  # a message, a store, a lock
        one_first = clocks[other.rank][second].get(one.rank, 0) > first
        other_first = clocks[one.rank][first].get(other.rank, 0) > second
        return not one_first and not other_first


def _key(each: Observation) -> Key:
    name = "" if str(each["op"]).startswith("DDP") else str(each["name"] or "")
    return tuple(each["group"] or (each.rank,)), name
