"""Judge whether gradients say how the loss changes: without one rank to compare with, the loss itself is the reference."""

from __future__ import annotations

from math import isclose, isfinite, sqrt
from statistics import mean
from typing import NamedTuple

from compose_sim.core.checks import Case, Result, names_text, warned
from compose_sim.core.checks.repeated_steps import step_place
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.gradients import LossSlope

_MIN_MOVES, MIN_STEPS = 3, 5  # moves of a parameter; steps, of which the first two move nothing
_UNSOUND = 0.95  # the correlation of both changes: that of right gradients is nearly 1
_NOISE = 1e-5  # of a loss, relative


class _Move(NamedTuple):
    parameter: str
    copies: int  # different ones, which may be parts
    change: float  # of the mean loss of all ranks
    predicted: float  # by the gradients
    loss: float


def _moves(case: Case) -> list[_Move]:
    """Return what each move of a parameter did; none if both runs differ without one."""
    if case.probed is None:
        return []
    first, second = _by_step(case.observed), _by_step(case.probed)
    found = []
    for step, notes in sorted(second.items()):
        pairs = [
            (before.loss, each.loss)
            for rank, each in notes.items()
            if (before := first.get(step, {}).get(rank)) is not None
            and before.loss is not None
            and each.loss is not None
        ]
        if not pairs or len(notes) < case.observed.world_size:
            continue
        if any(each.is_cut for each in notes.values()):
            return []
        if not any(each.parameter for each in notes.values()):
            if not all(isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) for one, other in pairs):
                return []
            continue
        products: dict[int, list[float]] = {}  # of copies
        for each in notes.values():
            if each.product is not None:
                products.setdefault(each.held, []).append(each.product)
        predicted = sum(map(mean, products.values()))
        change, loss = mean(other - one for one, other in pairs), mean(abs(one) for one, _ in pairs)
        if products and all(map(isfinite, (predicted, change, loss))):
            name = next(each.parameter for each in notes.values() if each.parameter)
            found.append(_Move(name, len(products), change, predicted, loss))
    return found


def _by_step(observed: Observed) -> dict[int, dict[int, LossSlope]]:
    found: dict[int, dict[int, LossSlope]] = {}
    for each in observed.of(LossSlope):
        found.setdefault(each.step, {})[each.rank] = each
    return found


def judge_slopes(case: Case) -> Result | None:
    """Find parameters whose gradients do not say how the loss changes."""
    by_name: dict[str, list[_Move]] = {}
    found = _moves(case)
    for each in found:  # of averaged weights there is one copy now and then
        alike = [move.copies for move in found if move.parameter == each.parameter]
        if each.copies == max(alike, key=alike.count):
            by_name.setdefault(each.parameter, []).append(each)
    correlations = {
        name: _correlation(each)
        for name, each in by_name.items()
        if len(each) >= _MIN_MOVES
        and max(abs(move.change) for move in each) > _NOISE * mean(move.loss for move in each)
    }
    unsound = [name for name, value in correlations.items() if value < _UNSOUND]
    if not unsound:
        return None
    worst = min(unsound, key=lambda name: correlations[name])
    return warned(
        f"the gradients of {names_text(unsound)} do not say how the loss changes if they are moved a little: the correlation is "
        f"{correlations[worst]:.2f} over {len(by_name[worst])} steps for {worst}, and nearly 1 for a right gradient",
        fix="Find what the backward pass loses, adds twice or gives to the wrong part: the `backward` of an autograd.Function, a "
        "gather without gradient, a mask or a slice of another rank. If a part of the loss is meant to have no gradient: "
        "`--skip matches-single`.",
        at=step_place(case),
    )


def _correlation(found: list[_Move]) -> float:
    both = sum(each.change * each.predicted for each in found)
    sizes = sum(each.change**2 for each in found) * sum(each.predicted**2 for each in found)
    return both / sqrt(sizes) if sizes > 0 else 0.0
