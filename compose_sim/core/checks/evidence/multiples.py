"""Find gradients that are a multiple of the mean over ranks: sums that nobody divides, or means that are divided again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from statistics import median

from compose_sim.core.checks import Result, failed, warned
from compose_sim.core.checks.evidence.gradient_sums import (
    Optimizer,
    Reduction,
    alike,
    factor,
    is_known,
    mean,
    norm,
)
from compose_sim.core.checks.wording import names_text, ranks_text
from compose_sim.core.units import format_count
from compose_sim.node.records.gradients import SketchedStep

ADAPTIVE = ("Ada", "RMSprop", "NAdam", "RAdam", "Lion", "Adam")  # whose steps do not depend on a constant factor
LEAST = 3  # steps that must show the same
LEAST_ELEMENTS = 4
NEAR = 0.02
CLOSELY = 1e-3
_FIX_DIVIDE = "Divide by the number of ranks after the sum: `p.grad /= dist.get_world_size()`, or reduce with `op=dist.ReduceOp.AVG`."
_FIX_ONCE = "Divide once: DistributedDataParallel and ReduceOp.AVG already take the mean over ranks."
_FIX_THESE = "Divide these as well: each bucket or tensor that is added over ranks, also the last and smallest, by the number of ranks."


def scaled(reductions: Sequence[Reduction]) -> Result | None:
    """Find a gradient that is the same multiple of the mean at every step, if nothing else explains the factor."""
    factors = [each.factor for each in reductions if each.factor is not None]
    size, first = len(reductions[0].ranks), reductions[0].step
    if len(factors) < min(LEAST, len(reductions)) or len(factors) < 2 or max(factors) > (1 + NEAR) * min(factors):
        return None
    times = median(factors)
    # The ranks' losses are means over their samples, times a number, added up over backward passes.
    scales = {(each.step.mean_times or 0.0) * each.step.backwards for each in reductions}
    of_loss = scales.pop() if len(scales) == 1 else 0.0
    if abs(of_loss - 1) > NEAR or any(each.step.in_backward for each in reductions):
        return None
    wrong = size if abs(times - size) < NEAR * size else 1 / size if abs(times - 1 / size) < NEAR / size else None
    if wrong is None:
        return None
    who = ranks_text(reductions[0].ranks)
    text = f"at each of {len(factors)} steps the gradient that was used is {_times(times)} the mean of those that {who} computed"
    why = "gradients are added but not divided" if times > 1 else "gradients are divided by the number of ranks twice"
    fix = _FIX_DIVIDE if times > 1 else _FIX_ONCE
    unsure = first.type.startswith(ADAPTIVE) or any(each.step.in_forward for each in reductions)
    return (warned if unsure else failed)(f"{text}: {why}", fix=fix, at=first.at, ranks=reductions[0].ranks)


def summed_in_part(optimizer: Optimizer) -> Result | None:
    """Find parameters whose gradients are at each step the sum over all ranks, while those of others are the mean."""
    steps = list(optimizer.steps.values())
    ranks = tuple(sorted(steps[0])) if steps else ()
    if len(steps) < LEAST or len(ranks) < 2 or any(row.model is not None for row in optimizer.rows):
        return None  # of a model that DDP wraps, all gradients are reduced alike
    if any(each.in_backward for by_rank in steps for each in by_rank.values()) or all(
        each.in_forward for each in (by_rank[min(by_rank)] for by_rank in steps)
    ):
        return None  # each rank may have a part of the gradient of some parameters, as in sequence parallelism
    found = [_times_the_least(optimizer, by_rank) if tuple(sorted(by_rank)) == ranks else {} for by_rank in steps]
    sums = [
        row for row in found[0] if all(abs(each.get(row, 0.0) - len(ranks)) < CLOSELY * len(ranks) for each in found)
    ]
    means = [row for row in found[0] if all(abs(each.get(row, 0.0) - 1) < CLOSELY for each in found)]
    if not sums or not means or len(sums) + len(means) < len(found[0]):
        return None
    first, these = steps[0][ranks[0]], names_text([optimizer.rows[row].name for row in sums])
    return (warned if first.type.startswith(ADAPTIVE) else failed)(
        f"at each of {len(steps)} steps the gradients of {these}, measured by the mean of those that {ranks_text(ranks)} "
        f"computed, are {len(ranks)} times those of {format_count(len(means), 'other parameter')}: "
        "they are added but not divided",
        fix=_FIX_THESE,
        at=first.at,
        ranks=ranks,
    )


def _times_the_least(optimizer: Optimizer, steps: Mapping[int, SketchedStep]) -> dict[int, float]:
    """Return by parameter how often the mean was used, divided by the least of these; {} unless all ranks have a part in each."""
    found: dict[int, float] = {}
    for row in (row for row, tensor in enumerate(optimizer.rows) if prod(tensor.shape) >= LEAST_ELEMENTS):
        if not all(is_known(step, row) for step in steps.values()):
            return {}
        owns = {rank: step.own[row] or () for rank, step in steps.items()}
        used = {rank: step.used[row] or () for rank, step in steps.items()}
        times = factor(used[min(used)], mean(list(owns.values())), CLOSELY)
        if not times or times < 0 or len(alike(used)) > 1 or len(alike(owns)) == 1 or not all(map(norm, owns.values())):
            return {}
        found[row] = times
    least = min(found.values(), default=1.0)
    # Clipping divides all alike; if the larger ones are exactly the mean, the others were divided on purpose.
    is_clear = least < 1 + NEAR and abs(max(found.values(), default=1.0) - 1) > CLOSELY
    return {row: each / least for row, each in found.items()} if is_clear else {}


def _times(value: float) -> str:
    return f"{value:.3g} times" if value > 1 else f"1/{1 / value:.3g} of"
