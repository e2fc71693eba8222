"""Which epochs of which loaders did each rank see? What observations say about data, put together for the checks that judge it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.events.observations import Observation, RankObserved

Pair = tuple[int, int]


@dataclass(slots=True)
class Epoch:
    """One pass of a rank over a loader; `facts` is the last that was noted of it."""

    number: int
    facts: Mapping[str, Any]
    closed: bool = False
    batches: list[Observation] = field(default_factory=list)

    @property
    def trained(self) -> bool:
        return bool(self.facts.get("trained"))

    @property
    def exhausted(self) -> bool:
        return bool(self.facts.get("exhausted"))

    @property
    def fetched(self) -> int:
        """How many batches were taken, as far as that was noted before a run broke off."""
        last = self.batches[-1]["batch"] + 1 if self.batches else 0
        return max(int(self.facts.get("batches") or 0), last)

    @property
    def synchronised(self) -> int:
        """How many forward passes were made whose gradients are reduced."""
        last = self.batches[-1]["synchronised"] if self.batches else 0
        return max(int(self.facts.get("synchronised") or 0), int(last or 0))

    def indices(self, batches: list[Observation]) -> list[int] | None:
        """What these batches hold, in order; None where that was not noted of all."""
        if any(batch["indices"] is None for batch in batches) or not batches:
            return None
        return [index for batch in batches for index in batch["indices"]]


@dataclass(slots=True)
class Loader:
    """One loader as one rank sees it."""

    rank: int
    facts: Observation
    epochs: dict[int, Epoch] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        return any(epoch.trained for epoch in self.epochs.values())

    @property
    def place(self) -> tuple[str | None, int | None]:
        file, line = self.facts["made"] or self.facts["at"] or (None, None)
        return file, line

    @property
    def data(self) -> tuple[Any, ...]:
        """Equal on two ranks that load from the same data set, as far as can be seen."""
        return self.facts["data"], self.facts["length"], self.facts["fingerprint"]


def loaders(case: Case) -> list[dict[int, Loader]]:
    """Each loader of the script's, as every rank that has it sees it."""
    found: dict[Any, dict[int, Loader]] = {}
    for rank in case.observed:
        seen: Counter[Any] = Counter()
        for loader in _loaders_of(rank):
            facts = loader.facts
            alike = (repr(facts["made"] or facts["at"]), facts["data"], tuple(facts["samplers"] or ()))
            found.setdefault((alike, seen[alike]), {})[rank.rank] = loader
            seen[alike] += 1
    return list(found.values())


def _loaders_of(rank: RankObserved) -> list[Loader]:
    found: dict[Any, Loader] = {}
    for each in rank.of("loader", "epoch", "batch"):
        number = each["loader"]
        if each.kind == "loader":
            found[number] = Loader(rank=rank.rank, facts=each)
        elif number not in found:
            continue
        elif each.kind == "epoch":
            epoch = found[number].epochs.setdefault(each["epoch"], Epoch(number=each["epoch"], facts=each.data))
            marks = epoch.facts.get("marks")
            epoch.facts = {"marks": marks, **each.data}
            epoch.closed = epoch.closed or each["phase"] == "closed"
        elif each["epoch"] in found[number].epochs:
            found[number].epochs[each["epoch"]].batches.append(each)
    return list(found.values())


def groups(case: Case, by_rank: Mapping[int, Loader] | None = None) -> list[tuple[int, ...]]:
    """Ranks that train one model together: with this loader where that was seen, else those of each DDP model, else all."""
    numbers = {rank: loader.facts["loader"] for rank, loader in (by_rank or {}).items()}
    trained = [each for each in case.observed.of("trains") if numbers.get(each.rank) == each["loader"]]
    found = {tuple(sorted(each["ranks"])) for each in trained or case.observed.of("ddp") if each["ranks"]}
    return sorted(found) or [tuple(sorted(case.observed.ranks))]


def pairs(case: Case, by_rank: Mapping[int, Loader] | None = None) -> list[Pair]:
    """All two ranks that train one model together."""
    return sorted({pair for group in groups(case, by_rank) for pair in combinations(group, 2)})


def drew_random(case: Case, loader: Loader) -> bool | None:
    """Whether random numbers went into this loader's samples; None where nobody could look."""
    drawn = [each for each in case.observed.ranks[loader.rank].of("drawn") if each["loader"] == loader.facts["loader"]]
    return any(each["states"] for each in drawn) if drawn else None


def local_rank_twins(case: Case, found: list[Pair]) -> bool:
    """Whether these are exactly the pairs of ranks that have one LOCAL_RANK."""
    ranks = case.observed.ranks
    twins = [pair for pair in pairs(case) if ranks[pair[0]].local_rank == ranks[pair[1]].local_rank]
    return bool(twins) and sorted(found) == twins and len(twins) < len(pairs(case))


def named(loader: Loader) -> str:
    """The loader in words."""
    file, line = loader.place
    where = f" ({file.rsplit('/', 1)[-1]}, line {line})" if file else ""
    return f"the loader of {loader.facts['data']}{where}"


def in_words(found: list[Pair]) -> str:
    """Pairs of ranks, the first few."""
    words = [f"{left} and {right}" for left, right in found[:3]]
    return f"ranks {', '.join(words)}" + (f" and {len(found) - 3} more pairs" if len(found) > 3 else "")


def shared_epochs(left: Loader, right: Loader) -> Iterator[tuple[Epoch, Epoch]]:
    """The epochs that both saw."""
    for number in sorted(left.epochs.keys() & right.epochs.keys()):
        yield left.epochs[number], right.epochs[number]
