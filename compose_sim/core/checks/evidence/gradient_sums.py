"""Relate the gradient that each step used to what each rank computed by itself, from sketches.

Sketches add up as the tensors do, so equations between gradients of several ranks can be tested without the tensors. Nothing is assumed
about how a script is parallel: ranks reduce a gradient together if they use the same one although each computed another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite, sqrt

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.gradients import Sketch, SketchedStep, SketchedTensor, SketchedTensors

_EQUAL = 1e-5  # relative: ranks get a reduced gradient with the same bits, or nearly
_FITS = 0.02  # relative: rounding of 16-bit gradients stays below
_FITS_CLOSELY = 1e-3

Vector = Sequence[float]
Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One step in which some ranks used the same gradients, although they computed different ones."""

    nth: int
    ranks: Ranks
    rows: tuple[int, ...]  # the parameters
    factor: float | None  # used = factor × mean of the ranks' own; None if it is not proportional
    weights: tuple[float, ...]  # used = mean of weight × own of each rank; empty if it is no such combination
    step: SketchedStep  # of the first rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The first steps of one optimizer on all ranks that step it."""

    index: int
    rows: tuple[SketchedTensor, ...]  # those that all these ranks have in common
    steps: Mapping[int, Mapping[int, SketchedStep]]  # by number and rank
    reductions: tuple[Reduction, ...]


def optimizers(observed: Observed) -> list[Optimizer]:
    """Return the optimizers whose steps were sketched."""
    tables: dict[int, dict[int, tuple[SketchedTensor, ...]]] = {}
    steps: dict[int, dict[int, dict[int, SketchedStep]]] = {}
    for each in observed.of(SketchedTensors, SketchedStep):
        if isinstance(each, SketchedTensors):
            tables.setdefault(each.optimizer, {})[each.rank] = each.rows
        else:
            steps.setdefault(each.optimizer, {}).setdefault(each.nth, {})[each.rank] = each
    return [_optimizer(index, tables.get(index, {}), steps[index]) for index in sorted(steps)]


def _optimizer(
    index: int, tables: Mapping[int, tuple[SketchedTensor, ...]], steps: Mapping[int, Mapping[int, SketchedStep]]
) -> Optimizer:
    first = next(iter(tables.values()), ())
    # Ranks are compared by position; a stage of a pipeline has other parameters at the same position.
    common = all(rows == first for rows in tables.values())
    reductions = [
        found for nth, by_rank in sorted(steps.items()) if common for found in _reductions(nth, by_rank, len(first))
    ]
    return Optimizer(index=index, rows=first if common else (), steps=steps, reductions=tuple(reductions))


def _reductions(nth: int, steps: Mapping[int, SketchedStep], count: int) -> list[Reduction]:
    rows_of: dict[Ranks, list[int]] = {}
    for row in range(count):
        ranks = [rank for rank, step in steps.items() if is_known(step, row)]
        for group in alike({rank: steps[rank].used[row] or () for rank in ranks}):
            owns = alike({rank: steps[rank].own[row] or () for rank in group})
            if len(group) > 1 and len(owns) > 1 and norm(steps[group[0]].used[row] or ()):
                rows_of.setdefault(group, []).append(row)
    return [_reduction(nth, ranks, rows, steps) for ranks, rows in sorted(rows_of.items())]


def is_known(step: SketchedStep, row: int) -> bool:
    """Return whether both the rank's own gradient of a parameter and the used one were seen, and are finite."""
    if row >= len(step.own) or row >= len(step.used):
        return False
    own, used = step.own[row], step.used[row]
    return own is not None and used is not None and all(map(isfinite, (*own, *used)))


def _reduction(nth: int, ranks: Ranks, rows: Sequence[int], steps: Mapping[int, SketchedStep]) -> Reduction:
    used = joined(steps[ranks[0]].used, rows)
    owns = [joined(steps[rank].own, rows) for rank in ranks]
    return Reduction(
        nth=nth,
        ranks=ranks,
        rows=tuple(rows),
        factor=factor(used, mean(owns)),
        weights=_weights(used, owns),
        step=steps[ranks[0]],
    )


def joined(sketches: Sequence[Sketch], rows: Iterable[int]) -> Vector:
    """Return the sketches of these parameters as one vector."""
    return list(chain.from_iterable(sketches[row] or () for row in rows))


def alike(values: Mapping[int, Vector]) -> list[Ranks]:
    """Divide ranks into those with equal values."""
    groups: list[list[int]] = []
    for rank in sorted(values):
        group = next((each for each in groups if are_equal(values[each[0]], values[rank])), None)
        if group is None:
            groups.append([rank])
        else:
            group.append(rank)
    return [tuple(group) for group in groups]


def are_equal(one: Vector, other: Vector) -> bool:
    """Return whether two sketches are those of the same tensor, up to rounding."""
    return len(one) == len(other) and distance(one, other) <= _EQUAL * max(norm(one), norm(other))


def factor(vector: Vector, base: Vector) -> float | None:
    """Return f if vector = f × base, else None."""
    square = dot(base, base)
    if not square or len(vector) != len(base):
        return None
    found = dot(vector, base) / square
    off = distance(vector, [found * each for each in base])
    return found if off <= _FITS * norm(vector) else None


def mean(vectors: Sequence[Vector]) -> Vector:
    """Return the mean of several vectors."""
    return [sum(values) / len(vectors) for values in zip(*vectors, strict=True)]


def norm(vector: Vector) -> float:
    """Return the length of a vector."""
    return sqrt(dot(vector, vector))


def dot(one: Vector, other: Vector) -> float:
    """Return the inner product."""
    return sum(left * right for left, right in zip(one, other, strict=True))


def distance(one: Vector, other: Vector) -> float:
    """Return the length of the difference."""
    return norm([left - right for left, right in zip(one, other, strict=True)])


def _weights(vector: Vector, bases: Sequence[Vector]) -> tuple[float, ...]:
    """Return w if vector = mean of w[i] × bases[i] and nothing else is; empty otherwise."""
    count = len(bases)
    if len(vector) < 2 * count:
        return ()
    rows = [[*(dot(one, other) for other in bases), dot(one, vector)] for one in bases]
    for column in range(count):  # Gauss and Jordan
        pivot = max(range(column, count), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) <= 1e-6 * max(dot(base, base) for base in bases):
            return ()
        for row in range(count):
            if row != column:
                share = rows[row][column] / rows[column][column]
                rows[row] = [left - share * right for left, right in zip(rows[row], rows[column], strict=True)]
    found = [rows[row][count] / rows[row][row] for row in range(count)]
    combined = [
        sum(weight * value for weight, value in zip(found, values, strict=True)) for values in zip(*bases, strict=True)
    ]
    return tuple(count * each for each in found) if distance(combined, vector) <= _FITS_CLOSELY * norm(vector) else ()
