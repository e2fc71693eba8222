"""What was observed inside the ranks of a run? Lines of text become values that checks judge; docs/observations.md lists the kinds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One thing that one rank did; `t` in Unix seconds, `index` its place among what this rank observed."""

    rank: int
    kind: str
    t: float
    index: int
    data: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        """The value of this name; None where the probe did not say."""
        return self.data.get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankObserved:
    """All that one rank observed in the last round of its run, in order."""

    rank: int
    node: str
    local_rank: int
    observations: tuple[Observation, ...] = ()

    def of(self, *kinds: str) -> Iterator[Observation]:
        """Those of these kinds, in order."""
        return (each for each in self.observations if each.kind in kinds)

    def last(self, kind: str) -> Observation | None:
        """The last of its kind."""
        return next((each for each in reversed(self.observations) if each.kind == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a run's ranks observed, by rank. Empty where nothing was."""

    ranks: Mapping[int, RankObserved]

    def __iter__(self) -> Iterator[RankObserved]:
        """Ranks in order."""
        return (self.ranks[rank] for rank in sorted(self.ranks))

    @property
    def world_size(self) -> int:
        """How many ranks observed anything."""
        return len(self.ranks)

    @property
    def nodes(self) -> Mapping[str, tuple[int, ...]]:
        """The ranks of each node."""
        names = dict.fromkeys(rank.node for rank in self)
        return {name: tuple(rank.rank for rank in self if rank.node == name) for name in names}

    def of(self, *kinds: str) -> Iterator[Observation]:
        """Those of these kinds, rank after rank."""
        return (each for rank in self for each in rank.of(*kinds))


def parse_rank(node: str, rank: int, lines: Iterable[str]) -> RankObserved:
    """What one rank's file says; lines torn by a crash are left out."""
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
