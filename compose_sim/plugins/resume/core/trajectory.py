"""The states of a run, step by step and rank by rank, and how far two of them are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.record import Place, Record
from compose_sim.node.records.resumption import HeldState, HeldTensor, HeldTensors, SeenBatch, TensorSketch

Name = tuple[str, str]  # the kind of a tensor, and its name
Samples = tuple[tuple[int, ...] | None, ...]  # of a step: the indices, or else hashes, of each batch
_TINY = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What one rank holds when its optimizer is about to step, and what it has done since the step before."""

    optimizer: int
    tensors: Mapping[Name, TensorSketch]
    sharded: frozenset[Name] = frozenset()
    groups: tuple[Mapping[str, float], ...] = ()
    batches: tuple[SeenBatch, ...] = ()
    backwards: int = 0
    loss: float | None = None
    random: Mapping[str, int] = field(default_factory=dict)
    at: Place | None = None

    @property
    def samples(self) -> Samples:
        """The samples of each batch: their indices if these are known, else hashes."""
        return tuple(each.rows if each.indices is None else each.indices for each in self.batches)

    @property
    def rows(self) -> Samples:
        """A hash for each sample as the model got it."""
        return tuple(each.rows for each in self.batches)

    @property
    def averages(self) -> set[str]:
        """The hashes of averages of the weights."""
        return {each.hash for each in self.of("average").values()}

    def of(self, *kinds: str) -> dict[Name, TensorSketch]:
        """Return the tensors of these kinds."""
        return {name: each for name, each in self.tensors.items() if name[0] in kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One rank of one run: a state for each step that was begun, and the last one, of no step."""

    states: tuple[State, ...] = ()
    last: State | None = None  # when the rank was interrupted, or the script ended

    def at(self, step: int) -> State | None:
        """Return the state after so many steps; the last one has no samples."""
        if 0 <= step < len(self.states):
            return self.states[step]
        return self.last if step == len(self.states) else None


Run = Mapping[int, Trajectory]  # by rank


def read_run(observed: Observed) -> dict[int, Trajectory]:
    """Return the trajectory of each rank."""
    return {rank.rank: _trajectory(rank) for rank in observed}


def steps_before(records: Iterable[Record]) -> Iterable[tuple[int, Record]]:
    """Yield each record with the number of optimizer steps that came before it."""
    steps = 0
    for each in records:
        if isinstance(each, HeldState) and each.moment == "step":
            steps = each.step + 1
        yield steps, each


def _trajectory(rank: RankObserved) -> Trajectory:
    tables: dict[int, tuple[HeldTensor, ...]] = {}
    states: list[State] = []
    last: State | None = None
    for each in rank.of(HeldTensors, HeldState):
        if isinstance(each, HeldTensors):
            tables[each.table] = each.rows
            continue
        rows = tables.get(each.table, ())
        state = State(
            optimizer=each.optimizer,
            tensors={(row.kind, row.name): it for row, it in zip(rows, each.sketches, strict=False) if it is not None},
            sharded=frozenset((row.kind, row.name) for row in rows if row.sharded),
            groups=each.groups,
            batches=each.batches,
            backwards=each.backwards,
            loss=each.loss,
            random=each.random or {},
            at=each.at,
        )
        if each.moment == "step" and each.step == len(states):
            states.append(state)
        elif each.moment != "step" and last is None:
            last = replace(state, batches=())  # those of a step that it did not make
    return Trajectory(states=tuple(states), last=last)


def epochs_of(run: Run) -> list[int]:
    """Return the epoch of each step, from 0: another one begins with each iterator over the loader of rank 0."""
    found: list[int] = []
    before: tuple[int, int] | None = None
    for state in run[min(run)].states if run else ():
        now = (state.batches[0].loader, state.batches[0].epoch) if state.batches else before
        found.append((found[-1] + (now != before)) if found else 0)
        before = now
    return found


def apart(one: TensorSketch, other: TensorSketch) -> float:
    """Return how far two tensors are apart, relative to the larger one; 0 if they are equal bit for bit."""
    if one.hash == other.hash:
        return 0.0
    size = max(one.norm, other.norm)
    if len(one.sums) != len(other.sums) or not math.isfinite(size):
        return math.inf
    return max(abs(one.norm - other.norm), *map(_difference, one.sums, other.sums), 0.0) / max(size, _TINY)


def distance(some: Mapping[Name, TensorSketch], others: Mapping[Name, TensorSketch]) -> float:
    """Return the distance between two sets of tensors, over those that both have."""
    return math.sqrt(
        sum(
            _difference(a, b) ** 2
            for name, one in some.items()
            if (other := others.get(name)) is not None and one.hash != other.hash
            for a, b in zip(one.sums, other.sums, strict=False)
        )
    )


def _difference(one: float, other: float) -> float:
    return min(abs(one - other), 1e150)  # its square is a number


def unequal(wanted: Mapping[Name, TensorSketch], found: Mapping[Name, TensorSketch], tolerance: float) -> list[Name]:
    """Return the names of wanted tensors that are missing, or differ by more than the tolerance."""
    return [name for name, each in wanted.items() if name not in found or apart(each, found[name]) > tolerance]


def names_of(names: Sequence[Name], most: int = 3) -> str:
    """Return the first few names."""
    return ", ".join(name for _, name in names[:most]) + (" …" if len(names) > most else "")
