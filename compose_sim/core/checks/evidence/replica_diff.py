"""Where do ranks hold different values that should be the same? Hashes of their tensors, compared step by step.

Ranks are compared at equal steps of an optimizer, by tensors which all of them have with one name, shape and type. A tensor that
differed and was equal again later is averaged now and then, as in local SGD: it does not stay different. With `join()` ranks
may take different numbers of steps until it ends, and are then compared by how many they took within it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from compose_sim.core.events.observations import Observation, Observed, RankObserved

Key = tuple[str, int | None, str]  # kind, index of the DDP model, name
Values = Mapping[Key, tuple[Any, ...]]  # shape, type, device, hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first time that a tensor differed, after `nth` steps of the optimizer; `agreeing` says which ranks are alike."""

    optimizer: int
    nth: int
    kind: str
    model: int | None
    name: str
    shape: tuple[int, ...]
    agreeing: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        size = "×".join(map(str, self.shape))
        return f"{self.kind} {self.name}{f' ({size})' if size else ''}"

    @property
    def who(self) -> str:
        """Which ranks hold what, in words."""
        if all(len(ranks) == 1 for ranks in self.agreeing):
            return f"each of ranks {', '.join(str(ranks[0]) for ranks in self.agreeing)} has its own"
        parts = [f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))}" for ranks in self.agreeing]
        return f"{' against '.join(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came of comparing one optimizer's tensors."""

    optimizer: int
    different: tuple[Difference, ...]  # those that stayed different, the earliest first
    excused: tuple[Difference, ...]  # those too, but ranks exchange whole sets of parameters by themselves
    again_equal: tuple[str, ...]  # names of tensors that differed, and did not later
    tensors: int  # how many were compared
    samples: int  # how often, after a step
    sharded: bool
    ranks: tuple[int, ...]


def compare(observed: Observed) -> tuple[Comparison, ...]:
    """One comparison for each optimizer that at least two ranks stepped."""
    is_uneven = has_uneven_join(observed)
    samples = {rank.rank: _samples(rank, by_join=is_uneven) for rank in observed}
    optimizers = sorted({moment[0] for mine in samples.values() for moment in mine})
    groups = {rank.rank: {int(each["ddp"]): tuple(each["ranks"]) for each in rank.of("ddp")} for rank in observed}
    compared = [_compare(optimizer, samples, groups) for optimizer in optimizers]
    return tuple(_excuse(each, observed, samples) for each in compared)


def step_at(observed: Observed, difference: Difference) -> Observation | None:
    """The step after which the difference was seen (the first one, where it was before that), on the first rank that tells of it."""
    nth = max(1, difference.nth)
    steps = (each for each in observed.of("step") if each["optimizer"] == difference.optimizer)
    return next((each for each in steps if each["nth"] == nth), None)


def models_at(step: Observation | None) -> Mapping[int, Mapping[str, Any]]:
    """What a step's note says of each DDP model in its optimizer; empty where it was not looked at closely."""
    return {int(each["ddp"]): each for each in (step["models"] if step is not None else None) or ()}


def shapes_exchanged(rank: RankObserved) -> list[tuple[int, ...]]:
    """The shapes of floating-point tensors in collectives that the script itself issued."""
    shapes: list[tuple[int, ...]] = []
    for each in rank.of("collective"):
        if not str(each["op"]).startswith("DDP") and each["shape"] is not None and "float" in str(each["dtype"]):
            listed = each["shape"] and isinstance(each["shape"][0], list)
            shapes += [tuple(shape) for shape in (each["shape"] if listed else [each["shape"]])]
    return shapes


def has_uneven_join(observed: Observed) -> bool:
    """Whether ranks took different numbers of steps, and `join()` answered for those that had none left."""
    steps = {max((int(each["nth"]) for each in rank.of("step")), default=0) for rank in observed}
    return len(steps) > 1 and any(each["enabled"] for each in observed.of("join"))


def _excuse(comparison: Comparison, observed: Observed, samples: Mapping[int, Samples]) -> Comparison:
    """Where ranks average parameters now and then, it may have happened between two looks at them."""
    if not comparison.different:
        return comparison
    found = {
        (key, values[0])
        for moment, (_, sample) in samples[comparison.ranks[0]].items()
        if moment[0] == comparison.optimizer
        for key, values in sample.items()
        if key[0] == "parameter"
    }
    total = sum(prod(shape) for _, shape in found)
    for rank in comparison.ranks:
        exchanged = set(shapes_exchanged(observed.ranks[rank]))
        if {shape for _, shape in found} <= exchanged or (total,) in exchanged:
            return replace(comparison, different=(), excused=comparison.different)
    return comparison


Moment = tuple[int, int, int, bool]  # optimizer, joins entered, steps done since then, whether at the end of the script
Samples = Mapping[Moment, tuple[int, Values]]  # all steps done by then, and what was held


def _samples(rank: RankObserved, *, by_join: bool) -> Samples:
    """
    What the rank held, by when.

    Where ranks join unevenly, the end of each join makes parameters equal, and nothing makes equal what the optimizer has kept.
    """
    tables: dict[tuple[int, int], list[list[Any]]] = {}
    found: dict[Moment, tuple[int, Values]] = {}
    joins, stepped, before = 0, Counter[int](), Counter[int]()
    for each in rank.of("tensors", "state", "step", "join"):
        if each.kind == "join":
            joins, before = joins + bool(by_join and each["enabled"]), Counter(stepped if by_join else ())
            continue
        if each.kind == "step":
            stepped[int(each["optimizer"])] = int(each["nth"])
            continue
        table = (int(each["optimizer"]), int(each["table"]))
        if each.kind == "tensors":
            tables[table] = each["names"]
        elif table in tables and len(tables[table]) == len(each["hashes"]):
            nth, is_end = int(each["nth"]), bool(each["final"])
            values = {
                (str(kind), model if isinstance(model, int) else None, str(name)): (tuple(shape or ()), *rest, value)
                for (kind, model, name, shape, *rest), value in zip(tables[table], each["hashes"], strict=True)
                if kind == "parameter" or not joins
            }
            when = (joins + 1, 0) if joins and is_end else (joins, nth - before[table[0]])
            found[(table[0], *when, is_end)] = nth, values
    return found


def _compare(
    optimizer: int, samples: Mapping[int, Samples], groups: Mapping[int, dict[int, tuple[int, ...]]]
) -> Comparison:
    mine = {
        rank: {moment: held for moment, held in all_.items() if moment[0] == optimizer}
        for rank, all_ in samples.items()
    }
    mine = {rank: held for rank, held in mine.items() if held}
    moments = sorted({moment for held in mine.values() for moment in held})
    # The end of a script may rightly differ (one rank loads the best weights again): unless nothing else is known, it
    # only shows what became equal.
    between = any(nth > 0 and not moment[-1] for held in mine.values() for moment, (nth, _) in held.items())
    first: dict[tuple[Key, tuple[int, ...]], Difference] = {}
    equal_again: set[str] = set()
    compared: set[Key] = set()
    times = 0
    for moment in moments:
        here = {rank: held[moment][1] for rank, held in mine.items() if moment in held}
        nth, final = next(held[moment][0] for held in mine.values() if moment in held), moment[-1]
        found = list(_differences(here, groups))
        times += nth > 0 and bool(found)
        for key, peers, agreeing in found:
            compared.add(key)
            if len(agreeing) == 1:
                again = [each for each in first if each[0] == key and set(each[1]) <= set(peers)]
                equal_again.update(key[2] for _ in again)
                first = {each: value for each, value in first.items() if each not in again}
            elif (key, peers) not in first and key[2] not in equal_again and not (final and between):
                shape = here[agreeing[0][0]][key][0]
                first[key, peers] = Difference(
                    optimizer=optimizer, nth=nth, kind=key[0], model=key[1], name=key[2], shape=shape, agreeing=agreeing
                )
    order = {"parameter": 0, "buffer": 1}
    different = sorted(first.values(), key=lambda it: (it.nth, order.get(it.kind, 2)))
    return Comparison(
        optimizer=optimizer,
        different=tuple(different),
        excused=(),
        again_equal=tuple(sorted(equal_again)),
        tensors=len(compared),
        samples=times,
        sharded=any(key[0] == "sharded" for held in mine.values() for _, values in held.values() for key in values),
        ranks=tuple(sorted(mine)),
    )


def _differences(
    here: Mapping[int, Values], groups: Mapping[int, dict[int, tuple[int, ...]]]
) -> Iterator[tuple[Key, tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    """(tensor, its ranks, those of them that agree) at one moment; a tensor belongs to the ranks of its DDP model, else to all."""
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


def _peers(
    rank: int, model: int | None, groups: Mapping[int, dict[int, tuple[int, ...]]], here: Mapping[int, Values]
) -> tuple[int, ...]:
    mine = groups.get(rank, {})
    ranks = mine.get(model) if model is not None else next(iter(mine.values()), tuple(here))
    return tuple(sorted(each for each in ranks or () if each in here))
