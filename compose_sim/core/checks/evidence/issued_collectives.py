"""Collect what the members of each process group issued, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.checks.wording import ranks_text, where
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.process_groups import Collective, DdpForward, LaterCollectives, LaterInGroup


@dataclass(frozen=True, slots=True)
class IssuedCollective:
    """A collective as one rank issued it, and how many forward passes of DDP models came before it."""

    seen: Collective
    forwards: int

    @property
    def rank(self) -> int:
        return self.seen.rank

    def __str__(self) -> str:
        return f"{self.seen.op}{where(self.seen.at)}"


@dataclass(frozen=True, slots=True)
class IssuingGroup:
    """What each member of a process group issued, in order."""

    ranks: tuple[int, ...]
    issued: Mapping[int, Sequence[IssuedCollective]]
    forwards: Mapping[int, int]  # of DDP models, in all, by rank
    later: Mapping[int, LaterInGroup]  # those that were too many to be recorded one by one

    @property
    def counts(self) -> dict[int, int]:
        """How many collectives each member issued in all."""
        return {
            rank: len(issued) + (self.later[rank].number if rank in self.later else 0)
            for rank, issued in self.issued.items()
        }

    @property
    def counted(self) -> str:
        """`rank 0 issued 55 collectives in group [0, 1], rank 1 only 50`."""
        members: dict[int, list[int]] = {}
        for rank, count in self.counts.items():
            members.setdefault(count, []).append(rank)
        (most, ahead), *fewer = sorted(members.items(), reverse=True)
        rest = ", ".join(f"{ranks_text(ranks)} only {count}" for count, ranks in fewer)
        return f"{ranks_text(ahead)} issued {most} collectives in {self}, {rest}"

    def surplus(self, one: int, other: int) -> IssuedCollective | None:
        """Return the first collective of a rank that its line issued more often than on the other rank."""
        left = Counter(str(each) for each in self.issued[other])
        for each in self.issued[one]:
            left[str(each)] -= 1
            if left[str(each)] < 0:
                return each
        return None

    def __str__(self) -> str:
        return f"group {list(self.ranks)}"


def issuing_groups(observed: Observed) -> list[IssuingGroup]:
    """Return the groups of at least two ranks; groups of the same ranks are distinguished by name."""
    found: dict[tuple[tuple[int, ...], str], dict[int, list[IssuedCollective]]] = {}
    forwards = dict.fromkeys(observed.ranks, 0)
    for rank in observed:
        for each in rank.of(Collective, DdpForward):
            if isinstance(each, DdpForward):
                forwards[rank.rank] += 1
            elif len(each.group) > 1:
                members: dict[int, list[IssuedCollective]] = {
                    member: [] for member in each.group if member in observed.ranks
                }
                issued = found.setdefault((each.group, each.name), members)
                issued.setdefault(rank.rank, []).append(IssuedCollective(each, forwards[rank.rank]))
    later: dict[tuple[tuple[int, ...], str], dict[int, LaterInGroup]] = {}
    for rank in observed:
        for group in (group for end in rank.of(LaterCollectives) for group in end.groups):
            later.setdefault((group.ranks, group.name), {})[rank.rank] = group
    return [IssuingGroup(key[0], issued, forwards, later.get(key, {})) for key, issued in found.items()]
