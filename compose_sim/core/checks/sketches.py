"""
Relate the gradient that each step used to the gradients that each rank computed by itself, by their sketches.

Sketches add up as the tensors do, so equations between gradients of several ranks can be tested without the tensors. Nothing is assumed
about how a script is parallel: ranks reduce a gradient together if they use the same one although each computed another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite, prod, sqrt

from compose_sim.core.checks.tolerances import (
    MIN_ELEMENTS,
    MIN_STEPS,
    ROUNDING_16_BIT,
    ROUNDING_32_BIT,
    ROUNDING_32_BIT_SUM,
    ROUNDING_COMBINATION,
)
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.gradients import ParameterNames, Sketch, SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.process_groups import Collective, UntrackedWait

ADAPTIVE = ("Ada", "RMSprop", "NAdam", "RAdam", "Lion", "Adam")  # a constant factor does not change their steps
_SHARING = ("broadcast", "scatter", "gather", "all_to_all")  # parts of the names of collectives

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
    by_pass: tuple[float, ...]  # used = sum of factor × mean of each backward pass; empty if it is no such combination
    step: SketchedStep  # the first rank's


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The first steps of one optimizer on the ranks that step it with the same parameters."""

    index: int
    rows: tuple[SketchedTensor, ...]
    steps: Mapping[int, Mapping[int, SketchedStep]]  # step number -> rank -> step
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
    return [each for index in sorted(steps) for each in _with_equal_rows(index, tables.get(index, {}), steps[index])]


def holds_copies(optimizer: Optimizer) -> bool:
    """Return whether some of its parameters had no gradient at any step, while others of the same shapes had."""
    steps = [step for by_rank in optimizer.steps.values() for step in by_rank.values()]
    return len(optimizer.steps) > 1 and all(step.copy_of is not None for step in steps)


def parameter_names(observed: Observed) -> dict[str, str]:
    """Map the numbers of parameters without a name to names, if all ranks and optimizers agree on them."""
    names: dict[str, set[str]] = {}
    for each in observed.of(ParameterNames):
        for number, name in each.names:
            names.setdefault(number, set()).add(name)
    return {number: agreed.pop() for number, agreed in names.items() if len(agreed) == 1}


def _with_equal_rows(
    index: int, tables: Mapping[int, tuple[SketchedTensor, ...]], steps: Mapping[int, Mapping[int, SketchedStep]]
) -> Iterator[Optimizer]:
    """Yield an optimizer for each set of ranks with the same parameters: a stage of a pipeline has others at the same positions."""
    for rows in dict.fromkeys(tables[rank] for by_rank in steps.values() for rank in by_rank if rank in tables):
        mine = {
            nth: {rank: step for rank, step in by_rank.items() if tables.get(rank) == rows}
            for nth, by_rank in sorted(steps.items())
        }
        mine = {nth: by_rank for nth, by_rank in mine.items() if by_rank}
        reductions = [found for nth, by_rank in mine.items() for found in _reductions(nth, by_rank, len(rows))]
        yield Optimizer(index=index, rows=rows, steps=mine, reductions=tuple(reductions))


def _reductions(nth: int, steps: Mapping[int, SketchedStep], count: int) -> list[Reduction]:
    rows_of: dict[Ranks, list[int]] = {}
    for row in range(count):
        ranks = [rank for rank, step in steps.items() if is_known(step, row) or _gave_nothing(step, row)]
        for group in alike({rank: steps[rank].used[row] or () for rank in ranks}):
            group = _members(group, row, steps)
            owns = alike({rank: _own(steps[rank], [row]) for rank in group})
            if len(group) > 1 and len(owns) > 1 and norm(steps[group[0]].used[row] or ()):
                rows_of.setdefault(group, []).append(row)
    return [_reduction(nth, ranks, rows, steps) for ranks, rows in sorted(rows_of.items())]


def _gave_nothing(step: SketchedStep, row: int) -> bool:
    """Return whether a rank used a gradient of a parameter that its own backward pass, which computed others, did not reach."""
    if not step.backwards or row >= min(len(step.own), len(step.used)):
        return False
    used = step.used[row]
    return step.own[row] is None and used is not None and all(map(isfinite, used)) and any(map(bool, step.own))


def _members(ranks: Ranks, row: int, steps: Mapping[int, SketchedStep]) -> Ranks:
    """
    Return the ranks whose gradients of a parameter were reduced, of those that used the same result.

    A rank that computed none contributed zero if the result is the mean over all ranks; otherwise it may only have received it.
    """
    average = mean([_own(steps[rank], [row]) for rank in ranks])
    times = factor(steps[ranks[0]].used[row] or (), average)
    if times is not None and abs(times - 1) < ROUNDING_16_BIT:
        return ranks
    return tuple(rank for rank in ranks if is_known(steps[rank], row))


def _own(step: SketchedStep, rows: Iterable[int]) -> Vector:
    """Return what a rank computed of these parameters; zero where it computed nothing."""
    return list(chain.from_iterable(step.own[row] or [0.0] * len(step.used[row] or ()) for row in rows))


def is_known(step: SketchedStep, row: int) -> bool:
    """Return whether both the rank's own gradient of a parameter and the used one were seen, and are finite."""
    if row >= len(step.own) or row >= len(step.used):
        return False
    own, used = step.own[row], step.used[row]
    return own is not None and used is not None and all(map(isfinite, (*own, *used)))


def _reduction(nth: int, ranks: Ranks, rows: Sequence[int], steps: Mapping[int, SketchedStep]) -> Reduction:
    used = joined(steps[ranks[0]].used, rows)
    owns = [_own(steps[rank], rows) for rank in ranks]
    proportional = factor(used, mean(owns))
    return Reduction(
        nth=nth,
        ranks=ranks,
        rows=tuple(rows),
        factor=proportional,
        weights=weights(used, owns),
        by_pass=_by_pass(ranks, rows, steps) if proportional is None else (),
        step=steps[ranks[0]],
    )


def _by_pass(ranks: Ranks, rows: Sequence[int], steps: Mapping[int, SketchedStep]) -> tuple[float, ...]:
    """Return f if the gradient that was used is the sum of f[i] × the mean over ranks of their i-th backward passes."""
    passes = [steps[rank].passes for rank in ranks]
    counts = {len(each) for each in passes}
    if len(counts) != 1 or not all(passes):
        return ()
    seen = [row for row in rows if row < len(passes[0][0])]
    means = [mean([joined(sketches, seen) for sketches in each]) for each in zip(*passes, strict=True)]
    return tuple(each / len(means) for each in weights(joined(steps[ranks[0]].used, seen), means))


def scaled_apart(optimizer: Optimizer) -> Iterator[tuple[SketchedStep, dict[int, float]]]:
    """
    Yield the steps in which each rank used the mean of all ranks times a factor, and the factors.

    Ranks that hold copies beside parts of a model compute equal gradients of the copies.
    """
    for _, steps in sorted(optimizer.steps.items()):
        rows = [row for row, each in enumerate(optimizer.rows) if prod(each.shape) >= MIN_ELEMENTS]
        rows = [row for row in rows if all(is_known(step, row) for step in steps.values())]
        found: list[dict[int, float]] = []
        for row in rows if len(steps) > 1 else ():
            owns = {rank: step.own[row] or () for rank, step in steps.items()}
            average = mean(list(owns.values()))
            factors = {rank: factor(step.used[row] or (), average, ROUNDING_32_BIT_SUM) for rank, step in steps.items()}
            known = {rank: each for rank, each in factors.items() if each is not None and each > 0}
            if len(known) == len(steps):
                found.append(known)
        if len(found) > 1 and all(
            abs(each[rank] - found[0][rank]) <= ROUNDING_32_BIT_SUM * each[rank] for each in found for rank in each
        ):
            yield steps[min(steps)], found[0]


def same_gradients(observed: Observed) -> SketchedStep | None:
    """
    Return the last sketched step if all ranks hold the same replica and computed equal gradients from the first step on.

    Also return None if nothing reduces these gradients, or if ranks give each other tensors that are no weights: then samples may be
    the same on purpose.
    """
    found = optimizers(observed)
    size = observed.world_size
    for each in found:
        everywhere = all(len(by_rank) == size for by_rank in each.steps.values())
        if not everywhere or len(each.steps) < MIN_STEPS or not _computed_the_same(each) or _has_one_gradient(each):
            return None
    if not found or _share_samples(observed, found) or not all(_is_reduced(observed, each) for each in found):
        return None
    steps = found[0].steps
    return steps[max(steps)][0]


def _has_one_gradient(optimizer: Optimizer) -> bool:
    """Return whether the gradient does not depend on samples: it never changes."""
    return len({by_rank[0].own for by_rank in optimizer.steps.values()}) == 1


def _is_reduced(observed: Observed, optimizer: Optimizer) -> bool:
    if all(row.model is not None for row in optimizer.rows):
        return True  # DDP reduces them
    # The script reduces them if it reduces as many numbers as the gradients have.
    numbers = sum(prod(shape) for shape in _reduced_shapes(observed))
    return 2 * numbers >= len(optimizer.steps) * sum(prod(row.shape) for row in optimizer.rows)


def _reduced_shapes(observed: Observed) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that the first rank reduces with all ranks."""
    everyone = tuple(sorted(observed.ranks))
    own = (each for each in observed.ranks[0].of(Collective) if each.op == "all_reduce" and each.group == everyone)
    return [shape for each in own if "float" in str(each.dtype) for shape in each.shapes]


def _share_samples(observed: Observed, found: list[Optimizer]) -> bool:
    """Return whether ranks exchange tensors of more than one number, besides weights before the first step."""
    if any("send" in each.how or "recv" in each.how for each in observed.of(UntrackedWait)):
        return True
    weights = {row.shape for each in found for row in each.rows}
    return any(_shares(rank, weights) for rank in observed)


def _shares(rank: RankObserved, weights: set[tuple[int, ...]]) -> bool:
    for each in rank.of(Collective, SketchedStep):
        if isinstance(each, SketchedStep):
            weights = set()
        elif any(word in each.op for word in _SHARING) and (
            not each.shapes or any(prod(shape) > 1 and shape not in weights for shape in each.shapes)
        ):
            return True
    return False


def _computed_the_same(optimizer: Optimizer) -> bool:
    """
    Return whether all ranks hold equal parameters, computed equal gradients at every step, and used a multiple of them.

    Ranks that hold parts of a model have different parameters.
    """
    return bool(optimizer.rows) and all(
        len(by_rank) > 1 and _are_twins(by_rank, len(optimizer.rows)) for by_rank in optimizer.steps.values()
    )


def _are_twins(steps: Mapping[int, SketchedStep], count: int) -> bool:
    if not all(is_known(step, row) for step in steps.values() for row in range(count)):
        return False
    first, *others = ((joined(s.before, range(count)), joined(s.own, range(count))) for s in steps.values())
    if not norm(first[1]) or factor(joined(next(iter(steps.values())).used, range(count)), first[1]) is None:
        return False
    return all(are_equal(mine, its) for other in others for mine, its in zip(first, other, strict=True))


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
    return len(one) == len(other) and distance(one, other) <= ROUNDING_32_BIT * max(norm(one), norm(other))


def factor(vector: Vector, base: Vector, within: float = ROUNDING_16_BIT) -> float | None:
    """Return f if vector = f × base, up to rounding, else None."""
    square = dot(base, base)
    if not square or len(vector) != len(base):
        return None
    found = dot(vector, base) / square
    off = distance(vector, [found * each for each in base])
    return found if off <= within * norm(vector) else None


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


def weights(vector: Vector, bases: Sequence[Vector]) -> tuple[float, ...]:
    """
    Return w if vector = mean of w[i] × bases[i] and nothing else is; empty otherwise.

    The weights of the least squared distance solve the equations `sum of w[j] (base[i]·base[j]) = base[i]·vector`, which Gauss-Jordan
    elimination solves. Bases that depend on each other have no pivot; weights that do not give the vector do not count.
    """
    count = len(bases)
    if len(vector) < 2 * count:
        return ()
    rows = [[*(dot(one, other) for other in bases), dot(one, vector)] for one in bases]
    for column in range(count):
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
    return (
        tuple(count * each for each in found)
        if distance(combined, vector) <= ROUNDING_COMBINATION * norm(vector)
        else ()
    )
