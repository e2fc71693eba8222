"""Read what was observed inside the ranks of a run, for the checks; docs/observations.md lists the kinds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One thing that a rank did; `t` is in Unix seconds, and `index` is the position in the file of the rank."""

    rank: int
    kind: str
    t: float
    index: int
    data: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        """Return the value of this name, or None if there is none."""
        return self.data.get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankObserved:
    """The observations of one rank in the last round, in order."""

    rank: int
    node: str
    local_rank: int
    observations: tuple[Observation, ...] = ()

    def of(self, *kinds: str) -> Iterator[Observation]:
        """Yield the observations of these kinds, in order."""
        return (each for each in self.observations if each.kind in kinds)

    def last(self, kind: str) -> Observation | None:
        """Return the last observation of a kind."""
        return next((each for each in reversed(self.observations) if each.kind == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observations of all ranks, by rank; empty if there are none."""

    ranks: Mapping[int, RankObserved]

    def __iter__(self) -> Iterator[RankObserved]:
        """Iterate over the ranks in order."""
        return (self.ranks[rank] for rank in sorted(self.ranks))

    @property
    def world_size(self) -> int:
        """The number of ranks with observations."""
        return len(self.ranks)

    @property
    def nodes(self) -> Mapping[str, tuple[int, ...]]:
        """The ranks on each node."""
        names = dict.fromkeys(rank.node for rank in self)
        return {name: tuple(rank.rank for rank in self if rank.node == name) for name in names}

    def of(self, *kinds: str) -> Iterator[Observation]:
        """Yield the observations of these kinds, rank after rank."""
        return (each for rank in self for each in rank.of(*kinds))


def parse_rank(node: str, rank: int, lines: Iterable[str]) -> RankObserved:
    """Read the lines of one rank; lines torn by a crash are skipped."""
    observations: list[Observation] = []
    for line in lines:
        try:
            data = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(data, dict) and isinstance(data.get("kind"), str):
            kind, t = data.pop("kind"), float(data.pop("t", 0.0))
            observations.append(Observation(rank=rank, kind=kind, t=t, index=len(observations), data=data))
    given = next((each for each in observations if each.kind == "given"), None)
    local_rank = int(given["local_rank"] or 0) if given else 0
    return RankObserved(rank=rank, node=node, local_rank=local_rank, observations=tuple(observations))
