"""Find values that should be equal on all ranks and are not, by comparing hashes of tensors step by step.

Ranks are compared at equal steps of an optimizer, by the tensors that all of them have with the same name, shape and type. A tensor
that differed and was equal again later is averaged now and then, as in local SGD: it does not count as different. With `join()`, ranks
may take different numbers of steps until the join ends; they are then compared by their steps within the join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from compose_sim.core.checks import ranks_text, shape_text
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import Join
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.models import DdpModel, OptimizerStep, SteppedModel, TensorHashes, TensorTable
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Shape

EXCHANGED = "ranks exchange as many numbers as all parameters have by themselves, which may be gradients or weights"
_MIN_EXCHANGES = 2
MAX_METRIC = 64  # a collective of fewer numbers is a metric, and no part of a model
Key = tuple[str, int | None, str]  # kind, number of the DDP model, name
Value = tuple[Shape, str | None, str | None, str | None]  # shape, type, device, hash
Values = Mapping[Key, Value]
Groups = Mapping[int, Mapping[int, tuple[int, ...]]]  # rank -> DDP model -> the ranks of the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first time that a tensor differed, after `nth` steps of the optimizer; `agreeing` are the ranks that hold the same value."""

    optimizer: int
    nth: int
    kind: str
    model: int | None
    name: str
    shape: Shape
    agreeing: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        size = shape_text(self.shape)
        return f"{self.kind} {self.name}{f' ({size})' if size else ''}"

    @property
    def who(self) -> str:
        """Which ranks hold the same value: "ranks 0, 2 against ranks 1, 3"."""
        if all(len(ranks) == 1 for ranks in self.agreeing):
            return f"each of ranks {', '.join(str(ranks[0]) for ranks in self.agreeing)} has its own"
        return " against ".join(map(ranks_text, self.agreeing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing one optimizer's tensors."""

    optimizer: int
    different: tuple[Difference, ...]  # tensors that stayed different, the earliest first
    excused: tuple[Difference, ...]  # the same, but ranks exchange whole sets of parameters by themselves
    again_equal: tuple[str, ...]  # names of tensors that differed and were equal later
    tensors: int  # how many were compared
    held: int  # of how many that any of the ranks holds
    samples: int  # after how many steps
    sharded: bool
    ranks: tuple[int, ...]
    # The first one after an uneven join, which leaves optimizers with other states
    after_join: Difference | None = None


def compare(observed: Observed) -> tuple[Comparison, ...]:
    """Return one comparison for each optimizer."""
    is_uneven = has_uneven_join(observed)
    samples = {rank.rank: samples_of(rank, by_join=is_uneven) for rank in observed}
    optimizers = sorted({moment.optimizer for mine in samples.values() for moment in mine})
    groups = {rank.rank: {each.ddp: each.ranks for each in rank.of(DdpModel)} for rank in observed}
    compared = [_excuse(_compare(optimizer, samples, groups), observed, samples) for optimizer in optimizers]
    keep_state = {
        table.optimizer
        for table in observed.of(TensorTable)
        if is_uneven and any(row.kind == "optimizer state" for row in table.rows)
    }
    return tuple(_set_apart(each, samples) if each.optimizer in keep_state else each for each in compared)


def _set_apart(comparison: Comparison, samples: Mapping[int, Samples]) -> Comparison:
    """Set apart what differs only after the first join that ended: its ranks then step with other states."""
    held = {
        moment: nth
        for moment, (nth, _) in samples[comparison.ranks[0]].items()
        if moment.optimizer == comparison.optimizer
    }
    begun = min((nth for moment, nth in held.items() if moment.joins > 1 and moment.steps), default=0)
    later = [each for each in comparison.different if 0 < begun <= each.nth]
    if not later or len(later) < len(comparison.different):
        return comparison
    return replace(comparison, different=(), after_join=later[0])


def step_at(observed: Observed, difference: Difference) -> OptimizerStep | None:
    """Return the step after which the difference was seen; the first step if it was seen before that."""
    nth = max(1, difference.nth)
    steps = (each for each in observed.of(OptimizerStep) if each.optimizer == difference.optimizer)
    return next((each for each in steps if each.nth == nth), None)


def model_at(step: OptimizerStep | None, number: int | None) -> SteppedModel | None:
    """Return what a step recorded about a DDP model; None if the step was not sampled."""
    return next((each for each in (step.models if step else ()) if each.ddp == number), None)


def maybe_parts(difference: Difference) -> str:
    """Return why ranks that give each other tensors may differ, and what would be wrong if they should not."""
    if not difference.nth:
        return "they may hold different parts"
    return "they may hold different parts; if they hold copies that began equal, such as tied weights, add up their gradients"


def states_at_start(observed: Observed, found: Difference) -> dict[int, set[str]]:
    """Return the names of what the optimizer held for this parameter before its first step, by rank."""
    kept: dict[int, set[str]] = {}
    for rank in observed:
        for moment, (nth, values) in samples_of(rank, by_join=False).items():
            if moment.optimizer == found.optimizer and nth == 0:
                states = (
                    name.rpartition(": ")
                    for kind, model, name in values
                    if kind == "optimizer state" and model == found.model
                )
                kept[rank.rank] = {key for owner, _, key in states if owner == found.name}
    return kept


def exchanges_parts(observed: Observed, *, began_equal: bool = False) -> bool:
    """
    Return whether some rank gives tensors to collectives of its own in every other step: ranks may hold different parts.

    If what differs `began_equal`, an all-reduce of gradients is no sign of that: it is how ranks keep copies equal.
    """
    steps = max(sum(1 for _ in rank.of(OptimizerStep)) for rank in observed)
    large = [
        sum(
            prod(shape) > MAX_METRIC
            for each in _floating(rank)
            if not (began_equal and _keeps_copies(each))
            for shape in each.shapes
        )
        for rank in observed
    ]
    # What it gives may have another size on each rank, so that is not recorded.
    parts = [sum(each.op == "all_to_all_single" and not each.shapes for each in _floating(rank)) for rank in observed]
    return any(2 * count >= steps for count in (*large, *parts))


def exchanges_activations(observed: Observed) -> bool:
    """Return whether every rank gives all others tensors that have rows, and no parameter's shape, as often as it steps."""
    shapes = {row.shape for each in observed.of(TensorTable) for row in each.rows}
    given = [
        sum(
            each.op in ("all_reduce", "all_gather", "all_gather_into_tensor") and not each.moves and len(shape) > 1
            for each in _floating(rank)
            for shape in each.shapes
            if shape not in shapes and len(each.group) == observed.world_size
        )
        for rank in observed
    ]
    return all(count >= sum(1 for _ in rank.of(SketchedStep)) for count, rank in zip(given, observed, strict=True))


def _floating(rank: RankObserved) -> Iterator[Collective]:
    """Yield the collectives with floating-point tensors that the script itself issued."""
    return (each for each in rank.of(Collective) if not each.by_fsdp and "float" in str(each.dtype))


def _keeps_copies(each: Collective) -> bool:
    return each.moves != "" and each.op in ("all_reduce", "broadcast", "reduce")


def _weights_exchanged(rank: RankObserved) -> set[Shape]:
    """Return the shapes of what may be weights, in collectives after the first step: before it, weights are made equal."""
    first = rank.first(OptimizerStep)
    later = (each for each in _floating(rank) if first and each.index > first.index and each.moves != "gradient")
    return {shape for each in later for shape in each.shapes}


def exchanges_some_weights(observed: Observed, optimizer: int) -> bool:
    """Return whether ranks exchange tensors of the shape of a matrix that they train, but only now and then, as federated clients."""
    found = False
    for rank in observed:
        tables = [each for each in rank.of(TensorTable) if each.optimizer == optimizer]
        shapes = [row.shape or () for table in tables for row in table.rows if row.kind == "parameter"]
        steps = sum(1 for _ in rank.of(OptimizerStep))
        given = (each for each in _floating(rank) if each.moves != "gradient")
        exchanged = Counter[Shape](shape for each in given for shape in each.shapes)
        matrices = {shape for shape in shapes if len(shape) > 1}
        if matrices and not any(_MIN_EXCHANGES <= exchanged[shape] <= steps / 2 for shape in matrices):
            return False
        found |= bool(matrices)
    return found


def has_uneven_join(observed: Observed) -> bool:
    """Return whether ranks took different numbers of steps, and `join()` answered for those that had none left."""
    steps = {max((each.nth for each in rank.of(OptimizerStep)), default=0) for rank in observed}
    return len(steps) > 1 and any(each.enabled for each in observed.of(Join))


def _excuse(comparison: Comparison, observed: Observed, samples: Mapping[int, Samples]) -> Comparison:
    """Excuse the differences if ranks average parameters now and then: that may have happened between two samples."""
    if not comparison.different:
        return comparison
    found = {
        (key, value[0])
        for moment, (_, sample) in samples[comparison.ranks[0]].items()
        if moment.optimizer == comparison.optimizer
        for key, value in sample.items()
        if key[0] == "parameter"
    }
    total = sum(prod(shape) for _, shape in found)
    for rank in comparison.ranks:
        exchanged = _weights_exchanged(observed.ranks[rank])
        if {shape for _, shape in found} <= exchanged or (total,) in exchanged:
            return replace(comparison, different=(), excused=comparison.different)
    return comparison


class StepMoment(NamedTuple):
    """When the tensors of an optimizer were hashed."""

    optimizer: int
    joins: int  # entered so far
    steps: int  # since the last of them
    final: bool  # whether the script had ended


Samples = Mapping[StepMoment, tuple[int, Values]]  # all steps so far, and the values at that moment


def samples_of(rank: RankObserved, *, by_join: bool) -> Samples:
    """
    Return what the rank held, by moment.

    If ranks join unevenly, the end of each join makes parameters equal, but nothing makes the optimizer's state equal.
    """
    tables: dict[tuple[int, int], TensorTable] = {}
    found: dict[StepMoment, tuple[int, Values]] = {}
    joins, stepped, before = 0, Counter[int](), Counter[int]()
    for each in rank.of(TensorTable, TensorHashes, OptimizerStep, Join):
        if isinstance(each, Join):
            joins, before = joins + (by_join and each.enabled), Counter(stepped if by_join else ())
        elif isinstance(each, OptimizerStep):
            stepped[each.optimizer] = each.nth
        elif isinstance(each, TensorTable):
            tables[each.optimizer, each.table] = each
        elif isinstance(each, TensorHashes) and (each.optimizer, each.table) in tables:
            rows = tables[each.optimizer, each.table].rows
            if len(rows) != len(each.hashes):
                continue
            values = {
                (row.kind, row.model, row.name): (row.shape or (), row.dtype, row.device, hashed)
                for row, hashed in zip(rows, each.hashes, strict=True)
                if row.kind == "parameter" or not joins
            }
            when = (joins + 1, 0) if joins and each.final else (joins, each.nth - before[each.optimizer])
            found[StepMoment(each.optimizer, *when, each.final)] = each.nth, values
    return found


def _compare(optimizer: int, samples: Mapping[int, Samples], groups: Groups) -> Comparison:
    mine = {
        rank: {moment: held for moment, held in all_.items() if moment.optimizer == optimizer}
        for rank, all_ in samples.items()
    }
    mine = {rank: held for rank, held in mine.items() if held}
    moments = sorted({moment for held in mine.values() for moment in held})
    # The end of a script may legitimately differ, for example if one rank loads the best weights again. Unless nothing else is
    # known, it only shows what became equal.
    between = any(nth > 0 and not moment.final for held in mine.values() for moment, (nth, _) in held.items())
    first: dict[tuple[Key, tuple[int, ...]], Difference] = {}
    equal_again: set[str] = set()
    compared: set[Key] = set()
    times = 0
    for moment in moments:
        here = {rank: held[moment][1] for rank, held in mine.items() if moment in held}
        nth = next(held[moment][0] for held in mine.values() if moment in held)
        found = list(_differences(here, groups))
        times += nth > 0 and bool(found)
        for key, peers, agreeing in found:
            compared.add(key)
            if len(agreeing) == 1 and moment.joins > 1 and not moment.steps:
                continue  # the end of a join makes weights equal, whatever they were before
            if len(agreeing) == 1:
                again = [each for each in first if each[0] == key and set(each[1]) <= set(peers)]
                equal_again.update(key[2] for _ in again)
                first = {each: value for each, value in first.items() if each not in again}
            elif (key, peers) not in first and key[2] not in equal_again and not (moment.final and between):
                shape = here[agreeing[0][0]][key][0]
                first[key, peers] = Difference(
                    optimizer=optimizer, nth=nth, kind=key[0], model=key[1], name=key[2], shape=shape, agreeing=agreeing
                )
    order = {"parameter": 0, "buffer": 1}
    # What the optimizer keeps of a parameter that is averaged now and then may be each rank's own.
    kept = [each for each in first.values() if each.name.rpartition(": ")[0] not in equal_again]
    different = sorted(kept, key=lambda it: (it.nth, order.get(it.kind, 2)))
    return Comparison(
        optimizer=optimizer,
        different=tuple(different),
        excused=(),
        again_equal=tuple(sorted(equal_again)),
        tensors=len(compared),
        held=len({key for held in mine.values() for _, values in held.values() for key in values}),
        samples=times,
        sharded=any(key[0] == "sharded" for held in mine.values() for _, values in held.values() for key in values),
        ranks=tuple(sorted(mine)),
    )


def _differences(
    here: Mapping[int, Values], groups: Groups
) -> Iterator[tuple[Key, tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    """Yield each tensor at one moment, with the ranks that hold it and those of them that agree."""
    found = list(_among_peers(here, groups))
    if found:
        yield from found
        return
    alike: dict[frozenset[tuple[Key, Shape]], dict[int, Values]] = {}  # the stages of pipelines, by their parameters
    for rank, values in here.items():
        held = frozenset((key, value[0]) for key, value in values.items() if key[0] == "parameter")
        alike.setdefault(held, {})[rank] = values
    for stage in alike.values():
        yield from _among_peers(stage, groups)


def _among_peers(
    here: Mapping[int, Values], groups: Groups
) -> Iterator[tuple[Key, tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    """Yield each tensor that all ranks of a DDP model (or all ranks) have."""
    for peers in sorted(
        {_peers(rank, model, groups, here) for rank in here for model in {key[1] for key in here[rank]}}
    ):
        if len(peers) < 2:
            continue
        names = [key for key in here[peers[0]] if all(key in here[rank] for rank in peers)]
        for key in names:
            if key[0] == "sharded" or any(_peers(rank, key[1], groups, here) != peers for rank in peers):
                continue
            values = {rank: here[rank][key] for rank in peers}
            if len({value[:-1] for value in values.values()}) == 1:
                hashes = dict.fromkeys(value[-1] for value in values.values())
                alike = (tuple(rank for rank in peers if values[rank][-1] == each) for each in hashes)
                yield key, peers, tuple(alike)


def _peers(rank: int, model: int | None, groups: Groups, here: Mapping[int, Values]) -> tuple[int, ...]:
    mine = groups.get(rank, {})
    ranks = mine.get(model) if model is not None else next(iter(mine.values()), tuple(here))
    return tuple(sorted(each for each in ranks or () if each in here))
