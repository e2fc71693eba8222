"""What some ranks of a large world did, and which samples all of them read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from compose_sim.core.json_values import from_json
from compose_sim.errors import SpecError

MOST_RANKS, MOST_RUN = 16_384, 16
_PER_NODE = (8, 4, 2, 1)
Outcome = Literal["stepped", "ended", "raised", "limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBytes:
    """The collectives of one kind in one group: how many, and the bytes of the tensors that this rank gives and gets."""

    kind: str
    group: str
    calls: int
    given: int
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMesh:
    """A mesh of devices that a rank made; `groups` are the names of its own group in each dimension."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    own: tuple[int, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLoader:
    """A DataLoader that a rank iterated; `opaque` says why its samples are not known."""

    at: str
    samplers: tuple[str, ...] = ()
    length: int | None = None
    batches: int | None = None
    opaque: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRank:
    """What one rank did: two optimizer steps, or the line that failed."""

    rank: int
    outcome: Outcome
    fake: bool = True  # whether its tensors held no data
    why_real: str = ""
    error: str = ""
    at: str = ""
    steps: int = 0
    peak: int = 0  # bytes of tensors
    per_step: tuple[CollectiveBytes, ...] = ()
    once: tuple[CollectiveBytes, ...] = ()  # in the second step, and in no other
    before: tuple[CollectiveBytes, ...] = ()  # until the first step was made
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the ranks of each group
    meshes: tuple[PlannedMesh, ...] = ()
    loaders: tuple[PlannedLoader, ...] = ()
    values: tuple[str, ...] = ()  # lines that asked for a value, and got 1

    @property
    def builds(self) -> bool:
        """Return whether the rank made its two steps."""
        return self.outcome == "stepped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSets:
    """What the first epoch of the script's first loader gives to each rank."""

    shares: int
    length: int | None
    distinct: int
    repeated: int  # draws of a sample that another draw has too, over the shares
    dropped: int | None  # samples that no rank reads; None without a length, or if not all ranks were examined
    steps: tuple[int, int]  # the fewest and the most batches of a share
    samples: tuple[int, int]
    of_ranks: tuple[int, ...]  # the share of each rank
    examined: int  # ranks
    way: Literal["copies", "ranks"]  # copies of one rank's sampler, or each rank up to its first batch
    listed: tuple[tuple[int, ...], ...] | None = None  # the samples of each share, if they are few

    @property
    def overlaps(self) -> bool:
        """Return whether more draws repeat a sample than shares of equal size, or of whole batches, need: fewer than one per share."""
        batch = 1 if self.dropped or self.steps[1] < 2 else -(-self.samples[1] // self.steps[1])
        return self.repeated >= self.shares * batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorld:
    """The answer of `plan --world`."""

    world: int
    per_node: int
    ranks: tuple[PlannedRank, ...]
    samples: SampleSets | None

    @property
    def works(self) -> bool:
        """Return whether all ranks that ran build, and all ranks make the same number of steps, at least one."""
        even = self.samples is None or (self.samples.steps[0] == self.samples.steps[1] > 0)
        return even and all(each.builds for each in self.ranks)


def ranks_per_node(world: int, requested: int | None) -> int:
    """Return how many ranks a node has; SpecError if they do not divide the world."""
    if not 2 <= world <= MOST_RANKS:
        raise SpecError(
            f"--world {world}: a world has 2 to {MOST_RANKS} ranks", hint="composesim plan --world 1024 train.py"
        )
    if requested and world % requested:
        raise SpecError(
            f"--world {world} is no multiple of --nproc-per-node {requested}",
            hint=f"composesim plan --world {max(1, world // requested) * requested} …",
        )
    return requested or next(each for each in _PER_NODE if world % each == 0)


def ranks_to_run(world: int, text: str) -> tuple[int, ...]:
    """Return the ranks that `--ranks` names, or the first, a middle and the last one."""
    if not text:
        return tuple(sorted({0, world // 2 - 1, world - 1}))
    words = text.split(",")
    if not all(word.strip().isdecimal() and len(word) < 10 and int(word) < world for word in words):
        raise SpecError(
            f"--ranks '{text:.80}': ranks of a world of {world} are 0 to {world - 1}",
            hint=f"composesim plan --world {world} --ranks 0,{world - 1} …",
        )
    ranks = tuple(sorted({int(word) for word in words}))
    if len(ranks) > MOST_RUN:
        raise SpecError(
            f"--ranks names {len(ranks)} ranks; at most {MOST_RUN} are run", hint=f"composesim plan --world {world} …"
        )
    return ranks


def planned_world(world: int, per_node: int, found: Any) -> PlannedWorld:
    """Return what the ranks' process wrote; ValueError if that is something else."""
    return from_json(PlannedWorld, {**found, "world": world, "per_node": per_node})


def ranks_in_words(ranks: Sequence[int], world: int) -> str:
    """Return `all 1,024 ranks`, `504–511`, `7, 15, …, 1023 (every 8th)` or the first ones."""
    if len(ranks) == world:
        return f"all {world:,} ranks"
    gaps = {after - before for before, after in pairwise(ranks)}
    if gaps == {1} and len(ranks) > 2:
        return f"{ranks[0]}–{ranks[-1]}"
    if len(ranks) <= 4:
        return ", ".join(map(str, ranks))
    middle = f"{ranks[0]}, {ranks[1]}, …, {ranks[-1]}"
    return f"{middle} (every {_ordinal(gaps.pop())})" if len(gaps) == 1 else f"{middle} ({len(ranks)} ranks)"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}th" if number % 100 in (11, 12, 13) else f"{number}{ending}"
