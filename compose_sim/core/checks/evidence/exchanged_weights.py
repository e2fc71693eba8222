"""Find ranks that exchange their weights between two steps, as in local SGD, and add what they should average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compose_sim.core.checks import Result, failed, warned
from compose_sim.core.checks.evidence.gradient_sums import (
    Optimizer,
    Ranks,
    Vector,
    alike,
    factor,
    joined,
    mean,
    weights,
)
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.units import format_count
from compose_sim.node.records.gradients import SketchedStep

_NEAR = 0.02
_LEAST = 2  # exchanges
_EXACTLY = 1e-3
_FAR = 2.0  # times the mean change: above what outer momentum makes of it
_FIX_WEIGHTS = "Divide by the number of ranks after the sum, before the weights are used."
_FIX_CHANGES = "Divide the sum of the changes by the number of ranks before it is added to the common weights."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """All ranks held different weights, and then the same."""

    step: SketchedStep  # the first after it
    ranks: Ranks
    of_weights: float | None  # the new weights, as a multiple of the mean of those before
    # How often the change of the common weights holds the mean of the ranks' changes, besides earlier means
    of_changes: float | None


def added_weights(optimizer: Optimizer) -> Result | None:
    """Find ranks whose common weights are the sum of theirs, or move by far more than the mean of their changes."""
    found = _exchanges(optimizer)
    if not found:
        return None
    first = found[0]
    who, count = ranks_text(first.ranks), len(first.ranks)
    if all(each.of_weights is not None and abs(each.of_weights - count) < _NEAR * count for each in found):
        return failed(
            f"before step {first.step.nth} {who} replaced their weights by the sum of them, {count} times the mean",
            fix=_FIX_WEIGHTS,
            at=first.step.at,
            ranks=first.ranks,
        )
    least = max(_FAR, count / 2)
    moved = [each.of_changes for each in found if each.of_changes is not None]
    are_sums = all(abs(each - count) < _EXACTLY * count for each in moved)
    if _LEAST <= len(found) == len(moved) and (are_sums or min(moved) > least):
        return warned(
            f"before step {first.step.nth} {who} moved their common weights by {first.of_changes:.3g} times the mean of their "
            f"changes, and as far at each of {format_count(len(found), 'exchange')}: the changes are added, not averaged",
            fix=_FIX_CHANGES,
            at=first.step.at,
            ranks=first.ranks,
        )
    return None


def _exchanges(optimizer: Optimizer) -> list[_Exchange]:
    rows = range(len(optimizer.rows))
    found: list[_Exchange] = []
    common: Vector | None = None
    changes: list[Vector] = []  # the mean of the ranks' changes, for each exchange
    for nth, earlier in sorted(optimizer.steps.items()):
        later = optimizer.steps.get(nth + 1, {})
        ranks = tuple(sorted(earlier.keys() & later.keys()))
        # An optimizer may get more parameters later.
        values = [each for rank in ranks for each in (earlier[rank].before, earlier[rank].after, later[rank].before)]
        if len(ranks) < 2 or any(len(each) != len(rows) or None in each for each in values):
            continue
        before = {rank: joined(earlier[rank].before, rows) for rank in ranks}
        then = {rank: joined(earlier[rank].after, rows) for rank in ranks}
        now = {rank: joined(later[rank].before, rows) for rank in ranks}
        common = before[ranks[0]] if len(alike(before)) == 1 else common
        if len(alike(then)) == len(ranks) and len(alike(now)) == 1:
            average, new = mean(list(then.values())), now[ranks[0]]
            changes += [_minus(average, common)] if common is not None else []
            moved = _times(_minus(new, common), changes) if common is not None else None
            found.append(
                _Exchange(step=later[ranks[0]], ranks=ranks, of_weights=factor(new, average), of_changes=moved)
            )
    return found


def _times(moved: Vector, changes: Sequence[Vector]) -> float | None:
    """Return how often a change holds the last of the mean changes: by itself, or with momentum, which holds the earlier ones too."""
    alone = factor(moved, changes[-1])
    if alone is not None:
        return alone
    found = weights(moved, changes)
    return found[-1] / len(found) if found else None


def _minus(one: Vector, other: Vector) -> Vector:
    return [left - right for left, right in zip(one, other, strict=True)]
