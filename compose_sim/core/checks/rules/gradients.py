"""Judge whether each step uses the mean over the ranks of the gradients that each rank computed by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod
from statistics import median

from compose_sim.core.checks import (
    SEVERAL_RANKS,
    Case,
    Result,
    check,
    failed,
    names_text,
    not_applicable,
    passed,
    ranks_text,
    warned,
)
from compose_sim.core.checks.repeated_steps import only_scaled
from compose_sim.core.checks.replica_diff import exchanges_parts
from compose_sim.core.checks.rules.exchanges import added_weights, exchanges, wrong_shares
from compose_sim.core.checks.rules.slopes import lost_in_exchange
from compose_sim.core.checks.rules.updates import reduced_early
from compose_sim.core.checks.sketches import (
    ADAPTIVE,
    Optimizer,
    Ranks,
    Reduction,
    Vector,
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
from compose_sim.core.checks.tolerances import (
    CLIP_FACTOR,
    MIN_ELEMENTS,
    MIN_STEPS,
    ROUNDING_16_BIT,
    ROUNDING_32_BIT_SUM,
    ROUNDING_COMBINATION,
)
from compose_sim.core.events.observations import Observed
from compose_sim.core.text import format_count
from compose_sim.node.records.data import Join
from compose_sim.node.records.gradients import SHARDED, BoundaryGradient, SketchedStep
from compose_sim.node.records.models import BY_HAND, LossValue, OptimizerStep
from compose_sim.node.records.process_groups import UntrackedWait

_MAX_RANKS, _MAX_ROWS = 8, 64
_FIX_COPY = "Make the optimizer from the parameters of the model that is trained, after it was copied: `Optimizer(model.parameters())`."
_FIX_REPLACED = (
    "Make the optimizer after fully_shard, which gives the model new parameters: `Optimizer(model.parameters())`."
)


@check(
    "gradient-mean",
    "Does each step use the mean over ranks of their gradients?",
    SEVERAL_RANKS,
    may_follow=("wrapper-bypassed", "params-after-wrap", "collective-mismatch"),
)
def gradient_mean(case: Case) -> Result:
    """Compare the gradients that were used with those that each rank computed before any reduction."""
    misplaced = crossed_micro_batches(case) or reduced_early(case)
    if misplaced:
        return misplaced
    found = optimizers(case.observed)
    if not found:
        is_seen = case.observed.first(OptimizerStep) is not None
        return not_applicable("only `composesim check` records gradients" if is_seen else "no optimizer step was seen")
    joins = any(each.enabled for each in case.observed.of(Join))
    one_loss = _is_one_loss(case.observed)
    for each in found:
        problem = (
            _copy(each)
            or _crossed(each)
            or added_weights(each)
            or _wrong_reduction(each, joins=joins, one_loss=one_loss)
        )
        problem = problem or summed_in_part(each) or _never_reduced(case, each)
        if problem:
            return problem
    lost = (None if only_scaled(case) else lost_in_exchange(case)) or wrong_shares(case)
    if lost:
        return lost
    judged = [reduction for each in found for reduction in each.reductions if _is_judged(reduction)]
    if judged:
        rest = _unjudged(found)
        return passed(_summary(found, judged) + (f"; {rest}" if rest else ""), unjudged=rest)
    return not_applicable(_why_not(found))


def crossed_micro_batches(case: Case) -> Result | None:
    """Find stages that begin backward passes from an activation with the gradient of another one."""
    notes = list(case.observed.of(BoundaryGradient))
    counts = Counter((each.is_input, value) for each in notes for value in {each.activation, each.gradient})
    alone = [
        each for each in notes if counts[each.is_input, each.activation] == counts[each.is_input, each.gradient] == 1
    ]
    computed = {each.activation: each for each in alone if each.is_input}
    by_gradient = {each.gradient: each for each in computed.values()}
    crossed = [
        (used, given)
        for used in alone
        if not used.is_input
        and (own := computed.get(used.activation)) is not None
        and (given := by_gradient.get(used.gradient)) is not None
        and own.rank == given.rank != used.rank
        and own is not given
    ]
    if len(crossed) < MIN_STEPS:
        return None
    used, given = crossed[0]
    return failed(
        f"in {len(crossed)} backward passes rank {used.rank} uses the gradient that rank {given.rank} computed for another "
        "activation than the one from which it begins: stages work through micro-batches in different orders",
        fix="Go through the micro-batches in the same order on all stages: either `popleft()` or `pop()` everywhere.",
        at=used.at,
        ranks=sorted({used.rank, given.rank}),
    )


def _unjudged(found: Sequence[Optimizer]) -> str:
    """Return of which parameters no gradient was seen to be reduced, although ranks computed different ones; "" if there are none."""
    trained = [
        (each, row)
        for each in found
        for row in range(len(each.rows))
        if any(_differs_by_rank(by_rank, row) for by_rank in each.steps.values())
    ]
    names = [each.rows[row].name for each, row in trained if row not in _judged_rows(each)]
    if not names:
        return ""
    return f"not judged: {len(names)} of {len(trained)} parameters ({names_text(names)}), none of which was seen to be reduced"


def _differs_by_rank(steps: Mapping[int, SketchedStep], row: int) -> bool:
    """Return whether several ranks used a gradient of a parameter, and computed different ones, or such as were not seen."""
    using = {rank: step for rank, step in steps.items() if row < len(step.used) and norm(step.used[row] or ())}
    if len(using) < 2 or not all(is_known(step, row) for step in using.values()):
        return len(using) > 1
    return len(alike({rank: step.own[row] or () for rank, step in using.items()})) > 1


def _judged_rows(optimizer: Optimizer) -> set[int]:
    return {row for each in optimizer.reductions if _is_judged(each) for row in each.rows}


def _is_judged(reduction: Reduction) -> bool:
    return reduction.factor is not None or bool(reduction.weights)


def _summary(found: Sequence[Optimizer], judged: Sequence[Reduction]) -> str:
    seen = {(each.step.optimizer, each.nth) for each in judged}
    missing = [str(nth) for each in found for nth in sorted(each.steps) if (each.index, nth) not in seen]
    steps = f"{len(seen)} of {format_count(sum(len(each.steps) for each in found), 'step')}"
    rest = f"; not judged: step{'s'[: len(missing) > 1]} {names_text(missing)}" if missing else ""
    exact = all(each.factor is not None and abs(each.factor - 1) < ROUNDING_16_BIT for each in judged)
    what = (
        "the mean" if exact else "a multiple of the mean" if all(each.factor for each in judged) else "a weighted mean"
    )
    return f"{steps} used {what} of the gradients that the ranks computed ({ranks_text(judged[0].ranks)}){rest}"


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
    """Find an optimizer with parameters that never have a gradient, while those of a model with the same shapes have."""
    if not holds_copies(optimizer):
        return None
    steps = [step for by_rank in optimizer.steps.values() for step in by_rank.values()]
    model, why, fix = "DistributedDataParallel model", "the parameters of another copy", _FIX_COPY
    if steps[0].copy_of == SHARDED:
        model, why, fix = "model of fully_shard", "the parameters that fully_shard has replaced", _FIX_REPLACED
    return failed(
        f"{format_count(steps[0].copies, 'parameter')} of the {steps[0].type} had no gradient at any of {len(optimizer.steps)} steps, "
        f"but as many of the same shapes in a {model} had: the optimizer holds {why}, so the model's own never change",
        fix=fix,
        at=steps[0].at,
    )


def _crossed(optimizer: Optimizer) -> Result | None:
    """Find a gradient that was reduced with that of another parameter on another rank."""
    steps = optimizer.steps.get(1, {})
    rest = [row for row in range(min(len(optimizer.rows), _MAX_ROWS)) if row not in _judged_rows(optimizer)]
    if not rest or not 2 <= len(steps) <= _MAX_RANKS:
        return None
    found = [(row, *each) for row in rest for each in _partners(optimizer, row)]
    if len({row for row, _, _ in found}) < 2:
        return None
    (row, other, ranks), rank = found[0], min(steps)
    return failed(
        f"in step 1 the gradient of {optimizer.rows[row].name} on rank {rank} was reduced with that of "
        f"{optimizer.rows[other].name} on {ranks_text(ranks)}: ranks reduce gradients in different orders",
        fix="Reduce in the same order on every rank, such as that of `model.parameters()`; never in that of a set or of files.",
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
    if factor(used, own) is not None:  # its own alone: any gradient of zero would fit beside it
        return
    # Its own on all ranks: the gradient of a parameter that always has an equal one would fit as well.
    if _fits(used, [own, *(steps[rank].own[row] or () for rank in others)]):
        return
    for other in range(min(len(optimizer.rows), _MAX_ROWS)):
        is_alike = optimizer.rows[other].shape == optimizer.rows[row].shape and _is_replica(optimizer, other)
        if other == row or not is_alike:
            continue
        for choice in product((row, other), repeat=len(others)):
            owns = [own, *(steps[rank].own[at] or () for rank, at in zip(others, choice, strict=True))]
            if other in choice and _fits(used, owns):
                yield other, tuple(rank for rank, at in zip(others, choice, strict=True) if at == other)


def _fits(used: Vector, owns: Sequence[Vector]) -> bool:
    """Return whether a gradient is the mean or the sum of these."""
    average = mean(owns)
    return any(
        distance(used, [times * each for each in average]) < ROUNDING_COMBINATION * norm(used)
        for times in (1, len(owns))
    )


def _is_replica(optimizer: Optimizer, row: int) -> bool:
    """Return whether all ranks began with equal values of a parameter that is large enough to be told from others."""
    steps = optimizer.steps[1]
    if prod(optimizer.rows[row].shape) < MIN_ELEMENTS or not all(is_known(step, row) for step in steps.values()):
        return False
    return len(alike({rank: step.before[row] or () for rank, step in steps.items()})) == 1


def _never_reduced(case: Case, optimizer: Optimizer) -> Result | None:
    """Find copies of a parameter whose gradients nothing reduces, and that drift apart, while the script reduces those of others."""
    by_hand = [each for each in optimizer.reductions if optimizer.rows[each.rows[0]].model is None and _is_judged(each)]
    ranks = max((each.ranks for each in by_hand), key=len, default=())
    steps = [by_rank for by_rank in optimizer.steps.values() if set(ranks) <= set(by_rank)]
    is_by_parts = exchanges_parts(case.observed, began_equal=True) or case.observed.first(UntrackedWait)
    if not ranks or 1 not in optimizer.steps or len(steps) < MIN_STEPS or is_by_parts or exchanges(optimizer):
        return None
    names = [
        optimizer.rows[row].name
        for row in range(len(optimizer.rows))
        if row not in _judged_rows(optimizer) and _is_replica(optimizer, row) and _stays_alone(steps, ranks, row)
    ]
    if not names:
        return None
    return failed(
        f"at each of {len(steps)} steps each of {ranks_text(ranks)} used only its own gradient of {names_text(names)}, which began "
        "equal on all of them and drift apart, while those of "
        f"{format_count(len(_judged_rows(optimizer)), 'other parameter')} are reduced",
        fix="Reduce the gradients of all parameters that ranks share, or start those that each rank keeps with values of its own.",
        at=steps[0][ranks[0]].at,
        ranks=ranks,
    )


def _stays_alone(steps: Sequence[Mapping[int, SketchedStep]], ranks: Ranks, row: int) -> bool:
    """Return whether ranks computed different gradients of a parameter, used a multiple of their own, and ended apart."""
    mine = [by_rank[rank] for by_rank in steps for rank in ranks]
    if not all(is_known(step, row) and factor(step.used[row] or (), step.own[row] or ()) for step in mine):
        return False
    apart = all(len(alike({rank: by_rank[rank].own[row] or () for rank in ranks})) > 1 for by_rank in steps)
    return apart and len(alike({rank: steps[-1][rank].after[row] or () for rank in ranks})) > 1


def _is_one_loss(observed: Observed) -> bool:
    """Return whether every rank begins each backward pass from the same loss: each has a part of its gradient, and a sum is right."""
    losses = [[each.value for each in rank.of(LossValue)] for rank in observed]
    if len({len(each) for each in losses}) != 1 or not losses[0]:
        return False
    return all(max(each) - min(each) <= ROUNDING_32_BIT_SUM * max(map(abs, each)) for each in zip(*losses, strict=True))


def _wrong_reduction(optimizer: Optimizer, *, joins: bool, one_loss: bool) -> Result | None:
    """Judge the reductions of each group of ranks; in `join()`, DDP divides by all ranks even if some have no batches left."""
    groups: dict[Ranks, list[Reduction]] = {}
    most = max((len(each.ranks) for each in optimizer.reductions), default=0)
    for each in optimizer.reductions:
        if not joins or len(each.ranks) == most:
            groups.setdefault(each.ranks, []).append(each)
    for _, reductions in sorted(groups.items()):
        problem = (
            scaled(reductions, one_loss=one_loss)
            or _added_again(reductions)
            or _left_out(reductions)
            or _clipped_early(reductions)
        )
        if problem:
            return problem
    return None


def _added_again(reductions: Sequence[Reduction]) -> Result | None:
    """Find sums over ranks of gradients that earlier backward passes had summed already: each pass counts N times the next."""
    size, known = len(reductions[0].ranks), [each for each in reductions if each.by_pass]
    again = [
        each
        for each in known
        if all(abs(one / size - two) < ROUNDING_16_BIT * abs(two) for one, two in pairwise(each.by_pass))
    ]
    if len(again) < MIN_STEPS or len(again) < len(known):
        return None
    passes = len(again[0].by_pass)
    return failed(
        f"at each of {len(again)} steps the gradient of the first of {passes} backward passes counts {size ** (passes - 1)} times that "
        "of the last: each pass adds up the whole gradient over ranks again, also what was summed before",
        fix="Reduce once per step, after the last backward pass, and only then divide by the number of ranks.",
        at=again[0].step.at,
        ranks=again[0].ranks,
    )


def _left_out(reductions: Sequence[Reduction]) -> Result | None:
    """Find a rank whose gradient is never part of the one that all use."""
    known = [each for each in reductions if each.weights]
    if len(known) < MIN_STEPS or len(known) < len(reductions):
        return None
    ranks = reductions[0].ranks
    without = [
        rank
        for place, rank in enumerate(ranks)
        if all(abs(each.weights[place]) < ROUNDING_COMBINATION for each in known)
    ]
    if not without or len(without) == len(ranks):
        return None
    return failed(
        f"{ranks_text(without)} contributed nothing at {len(known)} steps: every rank used only the other ranks' gradients",
        fix="Reduce the gradients of all ranks with `all_reduce`, instead of sending those of one rank.",
        at=reductions[0].step.at,
        ranks=without,
    )


def _clipped_early(reductions: Sequence[Reduction]) -> Result | None:
    """Find gradients that were scaled on each rank, each by another factor below 1, before the mean."""
    known = [each for each in reductions if each.weights and each.factor is None]
    shrunk = [
        each
        for each in known
        if all(0 < weight < 1 + ROUNDING_16_BIT for weight in each.weights)
        and max(each.weights) > (1 + CLIP_FACTOR) * min(each.weights)
    ]
    if len(shrunk) < MIN_STEPS or len(shrunk) < len(known):
        return None
    weights = ", ".join(f"{weight:.2f}" for weight in shrunk[0].weights)
    return warned(
        f"in step {shrunk[0].nth} each rank's gradient was scaled by another factor ({weights}) before the mean, as by early clipping",
        fix="Clip after the reduction: then every rank scales the mean by the same factor.",
        at=shrunk[0].step.at,
        ranks=shrunk[0].ranks,
    )


_FIX_DIVIDE = "Divide by the number of ranks after the sum: `p.grad /= dist.get_world_size()`, or reduce with `op=dist.ReduceOp.AVG`."
_FIX_ONCE = "Divide once: DistributedDataParallel and ReduceOp.AVG already take the mean over ranks."


def scaled(reductions: Sequence[Reduction], *, one_loss: bool) -> Result | None:
    """Find a gradient that is the same multiple of the mean at every step, if nothing else explains the factor."""
    factors = [each.factor for each in reductions if each.factor is not None]
    size, first = len(reductions[0].ranks), reductions[0].step
    if first.type == BY_HAND:  # the update itself may divide
        return None
    if len(factors) < max(2, min(MIN_STEPS, len(reductions))) or max(factors) > (1 + ROUNDING_16_BIT) * min(factors):
        return None
    times = median(factors)
    # The ranks' losses are means over their samples, times a number, added up over backward passes.
    scales = {(each.step.mean_times or 0.0) * each.step.backwards for each in reductions}
    of_loss = scales.pop() if len(scales) == 1 else 0.0
    if abs(of_loss - 1) > ROUNDING_16_BIT or any(each.step.in_backward for each in reductions):
        return None
    if abs(times - size) >= ROUNDING_16_BIT * size and abs(times - 1 / size) >= ROUNDING_16_BIT / size:
        return None
    if one_loss and times > 1 and all(each.step.in_forward for each in reductions):
        return None
    who = ranks_text(reductions[0].ranks)
    why = "gradients are added but not divided" if times > 1 else "gradients are divided by the number of ranks twice"
    fix = _FIX_DIVIDE if times > 1 else _FIX_ONCE
    unsure = first.type.startswith(ADAPTIVE) or any(each.step.in_forward for each in reductions)
    return (warned if unsure else failed)(
        f"at each of {len(factors)} steps the gradient that was used is {_multiple_text(times)} the mean of those that {who} "
        f"computed: {why}",
        fix=fix,
        at=first.at,
        ranks=reductions[0].ranks,
    )


def summed_in_part(optimizer: Optimizer) -> Result | None:
    """Find parameters whose gradients are at each step the sum over all ranks, while those of others are the mean."""
    steps = list(optimizer.steps.values())
    ranks = tuple(sorted(steps[0])) if steps else ()
    if len(steps) < MIN_STEPS or len(ranks) < 2 or any(row.model is not None for row in optimizer.rows):
        return None  # DDP reduces all gradients of a model alike
    if any(each.in_backward for by_rank in steps for each in by_rank.values()) or all(
        each.in_forward for each in (by_rank[min(by_rank)] for by_rank in steps)
    ):
        return None  # each rank may have a part of the gradient of some parameters, as in sequence parallelism
    found = [_times_the_least(optimizer, by_rank) if tuple(sorted(by_rank)) == ranks else {} for by_rank in steps]
    sums = [
        row
        for row in found[0]
        if all(abs(each.get(row, 0.0) - len(ranks)) < ROUNDING_COMBINATION * len(ranks) for each in found)
    ]
    means = [row for row in found[0] if all(abs(each.get(row, 0.0) - 1) < ROUNDING_COMBINATION for each in found)]
    if not sums or not means or len(sums) + len(means) < len(found[0]):
        return None
    first, these = steps[0][ranks[0]], names_text([optimizer.rows[row].name for row in sums])
    return (warned if first.type.startswith((*ADAPTIVE, BY_HAND)) else failed)(
        f"at each of {len(steps)} steps the gradients of {these}, measured by the mean of those that {ranks_text(ranks)} "
        f"computed, are {len(ranks)} times those of {format_count(len(means), 'other parameter')}: "
        "they are added but not divided",
        fix="Also divide these. Every tensor that is summed over ranks, including the last small bucket, must be divided by the "
        "world size.",
        at=first.at,
        ranks=ranks,
    )


def _times_the_least(optimizer: Optimizer, steps: Mapping[int, SketchedStep]) -> dict[int, float]:
    """Return by parameter how often the mean was used, divided by the least of these; {} unless all ranks have a part in each."""
    found: dict[int, float] = {}
    for row in (row for row, tensor in enumerate(optimizer.rows) if prod(tensor.shape) >= MIN_ELEMENTS):
        if not all(is_known(step, row) for step in steps.values()):
            return {}
        owns = {rank: step.own[row] or () for rank, step in steps.items()}
        used = {rank: step.used[row] or () for rank, step in steps.items()}
        times = factor(used[min(used)], mean(list(owns.values())), ROUNDING_COMBINATION)
        if not times or times < 0 or len(alike(used)) > 1 or len(alike(owns)) == 1 or not all(map(norm, owns.values())):
            return {}
        found[row] = times
    least = min(found.values(), default=1.0)
    # Clipping divides all alike; if the larger ones are exactly the mean, the others were divided on purpose.
    is_clear = least < 1 + ROUNDING_16_BIT and abs(max(found.values(), default=1.0) - 1) > ROUNDING_COMBINATION
    return {row: each / least for row, each in found.items()} if is_clear else {}


def _multiple_text(value: float) -> str:
    return f"{value:.3g} times" if value > 1 else f"1/{1 / value:.3g} of"
