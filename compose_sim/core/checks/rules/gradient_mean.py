"""Judge whether each step uses the mean over the ranks of what each rank computed by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.evidence.exchanged_weights import added_weights
from compose_sim.core.checks.evidence.gradient_sums import (
    Optimizer,
    Ranks,
    Reduction,
    alike,
    distance,
    factor,
    holds_copies,
    is_known,
    joined,
    mean,
    norm,
    optimizers,
)
from compose_sim.core.checks.evidence.multiples import CLOSELY, LEAST, LEAST_ELEMENTS, NEAR, scaled, summed_in_part
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.units import format_count
from compose_sim.node.records.data import Join
from compose_sim.node.records.gradients import SHARDED, DetachedInLoss, SketchedStep
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective

QUESTION = "Does each step use the mean over ranks of their gradients?"

_MOST_RANKS, _MOST_ROWS = 8, 64
_FIX_COPY = "Make the optimizer from the parameters of the model that is trained, after it was copied: `Optimizer(model.parameters())`."
_FIX_REPLACED = (
    "Make the optimizer after fully_shard, which gives the model new parameters: `Optimizer(model.parameters())`."
)
_FIX_ORDER = (
    "Reduce in the same order on every rank, such as that of `model.parameters()`; never in that of a set or of files."
)
_FIX_LEFT_OUT = "Reduce the gradients of all ranks with `all_reduce`, instead of sending those of one rank."
_FIX_LAST = "Reduce once per step, after the last backward pass, and only then divide by the number of ranks."
_FIX_CLIP = "Clip after the reduction: then every rank scales the mean by the same factor."
FIX_GATHER = (
    "Gather with `torch.distributed.nn.functional.all_gather`, which has a gradient; if the loss does not use the result, gather "
    "`tensor.detach()`."
)
_FIX_DETACHED = (
    "Gather with `torch.distributed.nn.functional.all_gather`, which has a gradient. If they are meant as constants, as the keys of "
    "another encoder are, nothing is wrong."
)


def judge(case: Case) -> Result:
    """Compare the gradients that were used with those that each rank computed before any reduction."""
    if case.observed.world_size < 2:
        return not_applicable("there is only one rank")
    found = optimizers(case.observed)
    if not found:
        return not_applicable(_why_nothing(case))
    joins = any(each.enabled for each in case.observed.of(Join))
    for each in found:
        problem = _copy(each) or _crossed(each) or added_weights(each) or _wrong_reduction(each, joins=joins)
        problem = problem or summed_in_part(each)
        if problem:
            return problem
    lost = _lost_in_gather(case)
    if lost:
        return lost
    judged = [reduction for each in found for reduction in each.reductions if _is_judged(reduction)]
    if judged:
        return passed(_summary(judged))
    return not_applicable(_why_not(found))


def _lost_in_gather(case: Case) -> Result | None:
    """Find tensors that require a gradient and are gathered in most steps by a collective that returns none."""
    for rank in case.observed:
        least = max(LEAST, sum(1 for _ in rank.of(OptimizerStep)) // 2)
        gathered = [(each.op, each.shapes[0], each.at) for each in rank.of(Collective) if each.detaches and each.shapes]
        detached = [(each.op, each.shape, each.at) for each in rank.of(DetachedInLoss)]
        for found, which, fix in ((gathered, "that requires a", FIX_GATHER), (detached, "without its", _FIX_DETACHED)):
            if len(found) >= least:
                op, shape, at = found[0]
                return warned(
                    f"{op} gathers a tensor ({'×'.join(map(str, shape))}) {which} gradient {len(found)} times, and returns none: "
                    "a loss over the gathered tensors ignores how each rank's part changes the others' terms",
                    fix=fix,
                    at=at,
                )
    return None


def _why_nothing(case: Case) -> str:
    if case.observed.first(OptimizerStep):
        return "only `composesim check` records gradients"
    return "no optimizer step was seen"


def _is_judged(reduction: Reduction) -> bool:
    return reduction.factor is not None or bool(reduction.weights)


def _summary(judged: Sequence[Reduction]) -> str:
    steps = format_count(len({(each.step.optimizer, each.nth) for each in judged}), "step")
    exact = all(each.factor is not None and abs(each.factor - 1) < NEAR for each in judged)
    what = (
        "the mean" if exact else "a multiple of the mean" if all(each.factor for each in judged) else "a weighted mean"
    )
    return f"{steps} used {what} of the gradients that the ranks computed ({ranks_text(judged[0].ranks)})"


def _why_not(found: Sequence[Optimizer]) -> str:
    steps = [step for each in found for by_rank in each.steps.values() for step in by_rank.values()]
    if any(each.reductions for each in found):
        return "the gradients that were used are no combination of those that the ranks computed: something else is part of them"
    if all(len(by_rank) < 2 for each in found for by_rank in each.steps.values()):
        return "ranks train different parameters, or each optimizer is stepped by only one rank"
    if any(used for step in steps for used in step.used) and not any(step.backwards for step in steps):
        return "no backward pass before a step gave the gradients that it used: the script set them, or a closure computed them"
    if not any(is_known(step, row) for step in steps for row in range(len(step.own))):
        return "what each rank computes by itself was not seen, as if parameters were sharded"
    if all(_computed_alone(step) for step in steps):
        return "each rank steps with its own gradient, or all computed the same"
    return "no gradient was reduced over ranks that computed different ones"


def _computed_alone(step: SketchedStep) -> bool:
    known = [row for row in range(len(step.own)) if is_known(step, row)]
    return factor(joined(step.used, known), joined(step.own, known)) is not None


def _copy(optimizer: Optimizer) -> Result | None:
    """Find an optimizer whose parameters never have a gradient, while a model of the same shapes has."""
    if not holds_copies(optimizer):
        return None
    steps = [step for by_rank in optimizer.steps.values() for step in by_rank.values()]
    model, why, fix = "DistributedDataParallel model", "the parameters of another copy", _FIX_COPY
    if steps[0].copy_of == SHARDED:
        model, why, fix = "model of fully_shard", "the parameters that fully_shard has replaced", _FIX_REPLACED
    return failed(
        f"none of the {len(optimizer.rows)} parameters of the {steps[0].type} had a gradient at any of {len(optimizer.steps)} steps, "
        f"but a {model} with the same shapes had: the optimizer holds {why}, so the model never changes",
        fix=fix,
        at=steps[0].at,
    )


def _crossed(optimizer: Optimizer) -> Result | None:
    """Find a gradient that was reduced with that of another parameter on another rank."""
    steps = optimizer.steps.get(1, {})
    if any(map(_is_judged, optimizer.reductions)) or not 2 <= len(steps) <= _MOST_RANKS:
        return None
    found = [(row, *each) for row in range(min(len(optimizer.rows), _MOST_ROWS)) for each in _partners(optimizer, row)]
    if len({row for row, _, _ in found}) < 2:
        return None
    (row, other, ranks), rank = found[0], min(steps)
    return failed(
        f"in step 1 the gradient of {optimizer.rows[row].name} on rank {rank} was reduced with that of "
        f"{optimizer.rows[other].name} on {ranks_text(ranks)}: ranks reduce gradients in different orders",
        fix=_FIX_ORDER,
        at=steps[rank].at,
        ranks=sorted(steps),
    )


def _partners(optimizer: Optimizer, row: int) -> Iterator[tuple[int, Ranks]]:
    """Yield each parameter that other ranks reduced together with this one of the first rank, and these ranks."""
    steps = optimizer.steps[1]
    first, *others = sorted(steps)
    if not _is_replica(optimizer, row) or not norm(steps[first].used[row] or ()):
        return
    used, own = steps[first].used[row] or (), steps[first].own[row] or ()
    for other in range(min(len(optimizer.rows), _MOST_ROWS)):
        if (
            other == row
            or optimizer.rows[other].shape != optimizer.rows[row].shape
            or not _is_replica(optimizer, other)
        ):
            continue
        for choice in product((row, other), repeat=len(others)):
            average = mean([own, *(steps[rank].own[at] or () for rank, at in zip(others, choice, strict=True))])
            fits = any(
                distance(used, [times * each for each in average]) < CLOSELY * norm(used) for times in (1, len(steps))
            )
            if other in choice and fits:
                yield other, tuple(rank for rank, at in zip(others, choice, strict=True) if at == other)


def _is_replica(optimizer: Optimizer, row: int) -> bool:
    """Return whether all ranks began with equal values of a parameter that is large enough to be told from others."""
    steps = optimizer.steps[1]
    if prod(optimizer.rows[row].shape) < LEAST_ELEMENTS or not all(is_known(step, row) for step in steps.values()):
        return False
    return len(alike({rank: step.before[row] or () for rank, step in steps.items()})) == 1


def _wrong_reduction(optimizer: Optimizer, *, joins: bool) -> Result | None:
    """Judge the reductions of each group of ranks; in `join()`, DDP divides by all ranks, also once some have no batches left."""
    groups: dict[Ranks, list[Reduction]] = {}
    most = max((len(each.ranks) for each in optimizer.reductions), default=0)
    for each in optimizer.reductions:
        if not joins or len(each.ranks) == most:
            groups.setdefault(each.ranks, []).append(each)
    for _, reductions in sorted(groups.items()):
        problem = scaled(reductions) or _added_again(reductions) or _left_out(reductions) or _clipped_early(reductions)
        if problem:
            return problem
    return None


def _added_again(reductions: Sequence[Reduction]) -> Result | None:
    """Find sums over ranks of gradients that earlier backward passes had summed already: each pass counts N times the next."""
    size, known = len(reductions[0].ranks), [each for each in reductions if each.by_pass]
    again = [
        each for each in known if all(abs(one / size - two) < NEAR * abs(two) for one, two in pairwise(each.by_pass))
    ]
    if len(again) < LEAST or len(again) < len(known):
        return None
    passes = len(again[0].by_pass)
    return failed(
        f"at each of {len(again)} steps the gradient of the first of {passes} backward passes counts {size ** (passes - 1)} times that "
        "of the last: each pass adds up the whole gradient over ranks again, also what was summed before",
        fix=_FIX_LAST,
        at=again[0].step.at,
        ranks=again[0].ranks,
    )


def _left_out(reductions: Sequence[Reduction]) -> Result | None:
    """Find a rank whose gradient is never part of the one that all use."""
    known = [each for each in reductions if each.weights]
    if len(known) < LEAST or len(known) < len(reductions):
        return None
    ranks = reductions[0].ranks
    without = [rank for place, rank in enumerate(ranks) if all(abs(each.weights[place]) < 1e-3 for each in known)]
    if not without or len(without) == len(ranks):
        return None
    return failed(
        f"{ranks_text(without)} computed gradients at {len(known)} steps that no rank used: all used those of the others",
        fix=_FIX_LEFT_OUT,
        at=reductions[0].step.at,
        ranks=without,
    )


def _clipped_early(reductions: Sequence[Reduction]) -> Result | None:
    """Find gradients that were scaled on each rank, each by another factor below 1, before the mean."""
    known = [each for each in reductions if each.weights and each.factor is None]
    shrunk = [
        each
        for each in known
        if all(0 < weight < 1 + NEAR for weight in each.weights) and max(each.weights) > 1.05 * min(each.weights)
    ]
    if len(shrunk) < LEAST or len(shrunk) < len(known):
        return None
    weights = ", ".join(f"{weight:.2f}" for weight in shrunk[0].weights)
    return warned(
        f"in step {shrunk[0].nth} each rank's gradient was scaled by another factor ({weights}) before the mean, as by early clipping",
        fix=_FIX_CLIP,
        at=shrunk[0].step.at,
        ranks=shrunk[0].ranks,
    )
