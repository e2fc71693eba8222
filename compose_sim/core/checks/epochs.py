"""Put together what each rank recorded about its loaders: their epochs, and which ranks train one model with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from compose_sim.core.checks import Case, ranks_text, where
from compose_sim.core.checks.common_draws import Pair, take_parts
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import Batch, EpochProgress, LoaderInfo, LoaderRanks, RandomDraws
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import DdpModel
from compose_sim.node.records.process_groups import DdpForward
from compose_sim.node.records.record import Place

WRITTEN = ("write", "update", "rename", "create")  # what makes or changes a file


@dataclass(slots=True)
class Epoch:
    """One pass of a rank over a loader; `last` is the latest progress record."""

    number: int
    last: EpochProgress
    marks: tuple[int, ...] | None  # the epoch numbers that samplers and data set held at the beginning
    begun: int  # the index of the first progress record
    closed: bool = False
    batches: list[Batch] = field(default_factory=list)

    @property
    def trained(self) -> bool:
        return self.last.trained

    @property
    def exhausted(self) -> bool:
        return self.last.exhausted

    @property
    def fetched(self) -> int:
        """How many batches were taken, as far as that was recorded before a run broke off."""
        return max(self.last.batches, self.batches[-1].batch + 1 if self.batches else 0)

    @property
    def forwards(self) -> int:
        """How many forward passes were made."""
        return max(self.last.forwards, *(batch.forwards for batch in self.batches), 0)

    @property
    def synchronized(self) -> int:
        """How many forward passes were made whose gradients are reduced."""
        return max(self.last.synchronized, self.batches[-1].synchronized if self.batches else 0)


@dataclass(slots=True)
class Loader:
    """One loader as one rank sees it."""

    rank: int
    info: LoaderInfo
    epochs: dict[int, Epoch] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        return any(epoch.trained for epoch in self.epochs.values())

    @property
    def place(self) -> Place | None:
        return self.info.made or self.info.at

    @property
    def data(self) -> tuple[str, int | None, int]:
        """Equal on two ranks that load from the same data set, as far as can be seen."""
        return self.info.data, self.info.length, self.info.fingerprint

    def __str__(self) -> str:
        return f"the loader of {self.info.data}{where(self.place)}"


def loaders(case: Case) -> list[dict[int, Loader]]:
    """Return each loader of the script, as every rank that has it sees it."""
    found: dict[Any, dict[int, Loader]] = {}
    for rank in case.observed:
        seen: Counter[Any] = Counter()
        for loader in loaders_of(rank):
            alike = (loader.place, loader.info.data, loader.info.samplers)
            found.setdefault((alike, seen[alike]), {})[rank.rank] = loader
            seen[alike] += 1
    return list(found.values())


def training_loaders(case: Case) -> list[dict[int, Loader]]:
    """Return the loaders from which a rank trains."""
    return [by_rank for by_rank in loaders(case) if any(loader.trained for loader in by_rank.values())]


def loaders_of(rank: RankObserved) -> list[Loader]:
    """Return the loaders that a rank iterated, with their epochs."""
    found: dict[int, Loader] = {}
    for each in rank.of(LoaderInfo, EpochProgress, Batch):
        if isinstance(each, LoaderInfo):
            found[each.loader] = Loader(rank=rank.rank, info=each)
        elif each.loader not in found:
            continue
        elif isinstance(each, EpochProgress):
            epochs = found[each.loader].epochs
            new = Epoch(number=each.epoch, last=each, marks=each.marks, begun=each.index)
            epoch = epochs.setdefault(each.epoch, new)
            epoch.last = each
            epoch.closed = epoch.closed or each.phase == "closed"
        elif each.epoch in found[each.loader].epochs:
            found[each.loader].epochs[each.epoch].batches.append(each)
    return list(found.values())


def calls_by_batch(rank: RankObserved, loader: Loader) -> dict[tuple[int, int], Place | None]:
    """Return where the model was called between a batch and the next, by epoch and batch; without a call only if a next was taken."""
    found: dict[tuple[int, int], Place | None] = {}
    last: tuple[int, int] | None = None
    called: Place | None = None
    for each in rank.of(Batch, DdpForward):
        if isinstance(each, DdpForward):
            called = called or each.at
        elif each.loader == loader.info.loader:
            if last is not None and (called or (each.epoch, each.batch) == (last[0], last[1] + 1)):
                found[last] = called
            last, called = (each.epoch, each.batch), None
    if last is not None and called:
        found[last] = called
    return found


def indices_of(batches: Sequence[Batch]) -> list[int] | None:
    """Return the indices in these batches, in order; None unless they were recorded for all of them."""
    if not batches or any(batch.indices is None for batch in batches):
        return None
    return [index for batch in batches for index in batch.indices or ()]


def rows_of(batches: Sequence[Batch]) -> list[int]:
    """Return the hashes of the samples in these batches, in order."""
    return [row for batch in batches for row in batch.rows or ()]


def groups(case: Case, by_rank: Mapping[int, Loader] | None = None) -> list[tuple[int, ...]]:
    """Return the ranks that train one model together: on this loader if that was seen, else those of each DDP model, else all."""
    numbers = {rank: loader.info.loader for rank, loader in (by_rank or {}).items()}
    trained = [each for each in case.observed.of(LoaderRanks) if numbers.get(each.rank) == each.loader]
    found = {tuple(sorted(each.ranks)) for each in trained or case.observed.of(DdpModel) if each.ranks}
    return sorted(found) or [tuple(sorted(case.observed.ranks))]


def pairs(case: Case, by_rank: Mapping[int, Loader] | None = None) -> list[Pair]:
    """Return all pairs of ranks that train one model together; of those that have this loader, if one is given."""
    found = {pair for group in groups(case, by_rank) for pair in combinations(group, 2)}
    return sorted(pair for pair in found if by_rank is None or set(pair) <= by_rank.keys())


def drew_random(case: Case, loader: Loader) -> bool | None:
    """Return whether random numbers went into this loader's samples; None if that was not recorded."""
    drawn = [each for each in case.observed.ranks[loader.rank].of(RandomDraws) if each.loader == loader.info.loader]
    return any(each.states for each in drawn) if drawn else None


def have_parts(case: Case, by_rank: Mapping[int, Loader], pair: Pair) -> bool:
    """Return whether two ranks load the same batches, and each gives its models other rows of these."""
    loaded = ((one.batches, other.batches) for one, other in shared_epochs(*(by_rank[rank] for rank in pair)))
    are_same = all(indices_of(one) is not None and indices_of(one) == indices_of(other) for one, other in loaded)
    return are_same and take_parts(case.observed, {rank: by_rank[rank].info for rank in pair})


def local_rank_twins(case: Case, found: list[Pair]) -> bool:
    """Return whether these are exactly the pairs of ranks with the same LOCAL_RANK."""
    ranks = case.observed.ranks
    twins = [pair for pair in pairs(case) if ranks[pair[0]].local_rank == ranks[pair[1]].local_rank]
    return bool(twins) and sorted(found) == twins and len(twins) < len(pairs(case))


def pairs_text(found: list[Pair]) -> str:
    """Return "ranks 0 and 1, 0 and 2 and 4 more pairs", or "any two of ranks 0, 1, 2"."""
    ranks = sorted({rank for pair in found for rank in pair})
    if len(found) > 1 and len(found) == len(ranks) * (len(ranks) - 1) // 2:
        return f"any two of {ranks_text(ranks)}"
    listed = ", ".join(f"{left} and {right}" for left, right in found[:3])
    return f"ranks {listed}" + (f" and {len(found) - 3} more pairs" if len(found) > 3 else "")


def shared_epochs(left: Loader, right: Loader) -> Iterator[tuple[Epoch, Epoch]]:
    """Yield the epochs that both ranks saw."""
    for number in sorted(left.epochs.keys() & right.epochs.keys()):
        yield left.epochs[number], right.epochs[number]


def read_between(observed: Observed, rank: int, after: int, before: int) -> FileUse | None:
    """Return the last read, between two records of a rank, of a file that the run itself had written since its first step."""
    written = {each.to or each.path for each in observed.of(FileUse) if each.op in WRITTEN and each.steps}
    reads = [
        each
        for each in observed.ranks[rank].of(FileUse)
        if each.op == "read" and each.path in written and after < each.index < before
    ]
    return reads[-1] if reads else None
