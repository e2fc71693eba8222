"""Judge the factors of gradients and learning rates: clipping, loss scales, and losses divided by the wrong number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, log2, sqrt

from compose_sim.core.checks import FAILED, WARNED, Case, Result, check, failed, not_applicable, passed, warned, where
from compose_sim.core.checks.epochs import loaders, training_loaders
from compose_sim.core.checks.loss_counts import counted_steps, divided_losses
from compose_sim.core.checks.repeated_steps import (
    Factor,
    beyond_tolerance,
    comparable,
    constant_factor,
    explained,
    factor_in_noise,
    is_by_hand,
    noise,
    step_place,
    steps_of,
)
from compose_sim.core.checks.rules.replays import alone_steps, why_not, why_not_joined
from compose_sim.core.checks.rules.updates import hold_the_same, norms_of_parts
from compose_sim.core.checks.sketches import ADAPTIVE, optimizers, scaled_apart
from compose_sim.core.checks.source import NORM_OF_SHARDS, find_hints
from compose_sim.core.checks.tolerances import (
    CLIP_FACTOR,
    LOSS_FACTOR,
    MIN_STEPS,
    RATE_FACTOR,
    ROUNDING_32_BIT_SUM,
    ROUNDING_64_BIT,
    ROUNDING_COMBINATION,
    SHARD_FACTOR,
)
from compose_sim.core.events.observations import Observed
from compose_sim.core.text import format_count
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.models import BY_HAND, OptimizerStep, ScheduleMade
from compose_sim.node.records.precautions import Clip, ShardScaling
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place
from compose_sim.node.records.replays import RecordedModels, RecordedStep, ReplayedStep, Settings

_FIX_WHOLE = (
    "Clip by the norm over all ranks: with FSDP2 `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`, with "
    "FullyShardedDataParallel `model.clip_grad_norm_(max_norm)`."
)
_OWN_NORM = (
    "clips by a norm that also counts gradients of its own",
    "Clip by a norm that is equal on all ranks: add up over the ranks the squares of what only one rank holds, such as an expert or a "
    "shard, then call torch.nn.utils.clip_grads_with_norm_.",
)
# How many times as many targets a rank has as another, of which ranks rightly take a mean each; the mean of a loss function is common.
_UNEQUAL, _UNEQUAL_MEAN = 1.25, 1.5
_MIN_SCHEDULED = 8  # steps of a schedule: few may be epochs
_OWN_SCALE = (
    "divides by a loss scale of its own",
    "Give all ranks the same loss scale: reduce whether a gradient is infinite (`op=dist.ReduceOp.MAX`) before the scale changes.",
)


@check("gradient-clipping", "Are gradients clipped by their whole norm, after they are unscaled?")
def gradient_clipping(case: Case) -> Result:
    """Look at what clipping saw, and at how each rank changed its shards between backward and the step."""
    clips = list(case.observed.of(Clip))
    problem = _scaled(clips) or _local_norm(case) or _scaled_apart(case) or _other_norms(case)
    if problem:
        return problem
    noted = _noted_norm(case) or norms_of_parts(case)
    if noted:
        return noted
    if clips:
        return passed(f"{format_count(len(clips), 'call')} of clip_grad_norm_ saw whole, unscaled gradients")
    if any(abs(each.factor - 1) > ROUNDING_32_BIT_SUM for each in case.observed.of(ShardScaling)):
        return not_applicable(
            "gradients were scaled without clip_grad_norm_, on all ranks alike, by a norm that was not seen"
        )
    return not_applicable("no gradient was seen to be clipped")


def _scaled(clips: list[Clip]) -> Result | None:
    scaled = [each for each in clips if each.scale != 1.0]
    if not scaled:
        return None
    first = scaled[0]
    return failed(
        f"clip_grad_norm_ compares {first.limit:g} with gradients that GradScaler has multiplied by {first.scale:g} (it saw a norm of "
        f"{first.norm:.3g}), and they are divided only afterwards: their norm is then at most {first.limit / first.scale:.2g}",
        fix="Call `scaler.unscale_(optimizer)` before `clip_grad_norm_`.",
        at=first.at,
    )


def _other_norms(case: Case) -> Result | None:
    """Find ranks that hold the same weights, but clip by different norms: each saw only the gradients that it steps with."""
    if not hold_the_same(case.observed):
        return None
    steps = list(zip(*([*rank.of(Clip)] for rank in case.observed), strict=False))
    apart = [
        each
        for each in steps
        if max(clip.norm for clip in each) > max(each[0].limit, (1 + CLIP_FACTOR) * min(clip.norm for clip in each))
    ]
    if len(apart) < MIN_STEPS or 2 * len(apart) < len(steps):
        return None
    first = apart[0]
    return warned(
        f"before {len(apart)} of {len(steps)} steps ranks that hold the same weights clip by different norms, first of all "
        f"{' and '.join(f'{clip.norm:.3g} on rank {clip.rank}' for clip in first[:2])}, to {first[0].limit:g}: each rank scales its "
        "gradients by another factor",
        fix="Clip by the norm of the whole gradient. If each rank updates a part of the weights, add up the squares over the ranks: "
        "`dist.all_reduce(norm_squared)`. If each rank has a gradient of its own, reduce it first.",
        at=first[0].at,
    )


def _local_norm(case: Case) -> Result | None:
    """Find steps before which ranks multiplied their shards of the same parameters by different factors."""
    factors: dict[tuple[int, int, tuple[int, ...]], dict[int, float]] = {}
    at: Place | None = None
    for each in case.observed.of(ShardScaling):
        ranks = each.ranks or tuple(sorted(case.observed.ranks))
        factors.setdefault((each.optimizer, each.nth, ranks), {})[each.rank] = each.factor
        at = at or each.at
    different = [
        by_rank
        for by_rank in factors.values()
        if len(by_rank) > 1
        and min(by_rank.values()) > 0
        and max(by_rank.values()) > (1 + SHARD_FACTOR) * min(by_rank.values())
    ]
    if len(different) < MIN_STEPS:
        return None
    shown = ", ".join(f"rank {rank}: {factor:.3g}" for rank, factor in sorted(different[0].items()))
    return failed(
        f"at {len(different)} of {len(factors)} steps each rank multiplied its shards of the gradients by another factor ({shown}): it "
        "clips by the norm of its own shards, which changes the direction of the gradient",
        fix=_FIX_WHOLE,
        at=at,
        ranks=sorted(different[0]),
    )


def _noted_norm(case: Case) -> Result | None:
    """Find a function that would clip shards by the rank's own norm, although no norm reached the limit in the steps seen."""
    noted = next((hint for hint in find_hints(case.sources) if hint.text.endswith(NORM_OF_SHARDS)), None)
    shards = list(case.observed.of(ShardScaling))
    exchanged = max((sum(not each.by_fsdp for each in rank.of(Collective)) for rank in case.observed), default=0)
    if noted is None or not shards or exchanged >= max(each.nth for each in shards):
        return None  # a norm that ranks exchange takes a collective for each step
    return warned(
        f"{noted.text}: each rank will multiply by another factor once its norm exceeds the limit, which was not seen",
        fix=_FIX_WHOLE,
        at=(noted.place.file, noted.place.line or 1),
    )


def _scaled_apart(case: Case) -> Result | None:
    """Find steps in which each rank multiplied the mean of the same gradients by another factor."""
    for optimizer in optimizers(case.observed):
        found = list(scaled_apart(optimizer))
        different = [
            (step, by_rank)
            for step, by_rank in found
            if max(by_rank.values()) > (1 + ROUNDING_COMBINATION) * min(by_rank.values())
        ]
        if len(different) < MIN_STEPS or 2 * len(different) < len(found):
            continue
        step, by_rank = different[0]
        shown = ", ".join(f"rank {rank}: {factor:.3g}" for rank, factor in sorted(by_rank.items()))
        # Loss scales are doubled and halved.
        has_scales = all(abs(log2(factor) - round(log2(factor))) < ROUNDING_32_BIT_SUM for factor in by_rank.values())
        why, fix = _OWN_SCALE if has_scales else _OWN_NORM
        return failed(
            f"at {len(different)} of {len(optimizer.steps)} steps each rank multiplied the mean gradient by another factor "
            f"({shown}), as if it {why}: the copies of a parameter drift apart",
            fix=fix,
            at=step.at,
            ranks=sorted(by_rank),
        )
    return None


_MAX_TERMS = 2  # half of a loss may be its weight, as of two directions of a contrastive loss
_RATES = {"lr": "the learning rate", "initial_lr": "initial_lr", "max_lr": "max_lr"}


@check(
    "loss-scale",
    "Is the gradient the mean over all samples, and the learning rate scaled once?",
    may_follow=("gradient-mean",),
)
def loss_scale(case: Case) -> Result:
    """Compare gradients and learning rates of all ranks with those of one rank with the same batches."""
    found = _judged(case)
    return found if found.status in (FAILED, WARNED) else _long_schedule(case.observed) or found


def _long_schedule(observed: Observed) -> Result | None:
    """Find schedules of the learning rate of which the run makes a part, one of as many as there are ranks."""
    size = observed.world_size
    for each in observed.of(ScheduleMade):
        share = each.ends / (each.steps * size) if each.steps >= _MIN_SCHEDULED else 0.0
        if size > 1 and abs(share - 1) < RATE_FACTOR:
            return warned(
                f"{each.type} ends after {each.ends} steps, and the run made {each.steps} of them, about 1/{size}: as if the steps of "
                "all ranks were counted, or those of one rank with all samples",
                fix="Count the steps that a rank makes: `len(loader)` with a DistributedSampler, or `len(data) // (batch_size * "
                "world_size)` in an epoch. If the run is meant to end earlier than its schedule, nothing is wrong.",
                at=each.at,
            )
    return None


def _judged(case: Case) -> Result:
    why = why_not(case)
    if why:
        return (
            _wrong_total(case, is_compared=False)
            or _divided_by_all(case)
            or _counted_apart(case)
            or not_applicable(why)
        )
    world_size = case.observed.world_size
    rate = _rate_scaled_twice(steps_of(case.single), world_size)
    if rate:
        fix = "Multiply the learning rate by the world size once, or by its square root."
        return failed(rate, fix=fix, at=step_place(case))
    steps = comparable(steps_of(case.single))
    blurred = noise(case.observed)
    in_noise = factor_in_noise(steps, world_size) if blurred and not is_by_hand(case) else None
    factor = in_noise if blurred else constant_factor(steps, case)
    if factor is None and not blurred:
        factor = constant_factor(alone_steps(case), case)
    if factor is not None:
        reason = explained(factor)
        if reason:
            return not_applicable(f"{reason}, which may be intentional")
        by_all = _divided_by_all(case) if abs(factor.value / world_size - 1) < LOSS_FACTOR else None
        return by_all if by_all and by_all.status == FAILED else _wrong_factor(factor, case)
    if blurred:
        return _counted_apart(case) or not_applicable(f"{blurred}, so gradients cannot be compared")
    alone = alone_steps(case)
    if not steps and not (alone and not beyond_tolerance(alone, case)):
        return not_applicable(why_not_joined(case.single))
    if not steps or beyond_tolerance(steps, case):
        return not_applicable("the loss is not a mean over samples, so it has no scale to compare")
    scales = [1 / (step.ratio or 1.0) for step in steps]
    return _wrong_total(case, is_compared=True) or passed(
        f"gradients of {world_size} ranks are {min(scales):.3f} to {max(scales):.3f} times those of one rank with the same batches"
    )


def _wrong_total(case: Case, *, is_compared: bool) -> Result | None:
    """
    Find backward passes of a step that add up to a multiple of the mean over the step's samples.

    If the gradients were compared with those of one rank (`is_compared`), that has shown whether ranks divide by their number.
    """
    size = case.observed.world_size
    for step, total in _added_up(case):
        passes = step.backwards
        if not is_compared and abs(total * size - 1) < LOSS_FACTOR:
            return warned(
                f"each step adds up {passes} backward passes of a loss divided by {1 / (step.mean_times or 1.0):.4g}: together "
                f"1/{size} of the mean, and reduction takes the mean over {size} ranks as well",
                fix="Divide the loss by the number of backward passes that this rank makes per step.",
                at=step.at,
            )
        if abs(total - passes) < LOSS_FACTOR and _takes_one_batch_a_pass(case, step):
            return warned(
                f"each step adds up {passes} backward passes, each of the mean over a batch, and nothing divides by {passes}: its "
                f"gradient is {passes} times the mean over all samples of the step",
                fix=f"Divide the loss of each batch: `(loss / {passes}).backward()`. If the learning rate is meant for the sum, "
                "nothing is wrong.",
                at=step.at,
            )
        if passes > _MAX_TERMS and abs(total * passes - 1) < LOSS_FACTOR:
            return warned(
                f"each step adds up {passes} backward passes, each of a mean divided by {passes**2}, as if the loss is divided by "
                f"{passes} twice: the gradient is 1/{passes} of the mean over all samples of the step",
                fix=f"Divide the loss of each batch by {passes} once. A library that accumulates, such as Accelerate, does so.",
                at=step.at,
            )
    return None


def _takes_one_batch_a_pass(case: Case, step: SketchedStep) -> bool:
    """Return whether each pass has a batch of the only loader, for an optimizer of which a factor changes the steps."""
    if len(training_loaders(case) or loaders(case)) != 1:
        return False  # loaders of several domains, whose losses are added
    own = [each.fetched for each in case.observed.ranks[0].of(RecordedStep) if each.optimizer == step.optimizer]
    batches = {later - earlier for earlier, later in pairwise(own)}
    is_adaptive = step.type.startswith((*ADAPTIVE, BY_HAND))  # it undoes a factor, or may divide
    return batches == {step.backwards} and not is_adaptive


def _added_up(case: Case) -> Iterator[tuple[SketchedStep, float]]:
    """Yield steps that used the mean over ranks of several backward passes of mean losses, and the sum of what multiplies these."""
    for each in optimizers(case.observed):
        reductions = [found for found in each.reductions if len(found.ranks) == case.observed.world_size]
        totals = {round((found.step.mean_times or 0.0) * found.step.backwards, 6) for found in reductions}
        is_mean = all(found.factor is not None and abs(found.factor - 1) < LOSS_FACTOR for found in reductions)
        if is_mean and len(totals) == 1 and len(reductions) >= MIN_STEPS and reductions[0].step.backwards > 1:
            yield reductions[0].step, totals.pop()


def _divided_by_all(case: Case) -> Result | None:
    """Judge a sum that is divided by the count of all ranks: whether the mean over ranks is undone."""
    world_size = case.observed.world_size
    if not _takes_the_mean(case.observed, LOSS_FACTOR):
        return None
    found = list(divided_losses(case.observed))
    if len({each.step.nth for each in found}) < MIN_STEPS or len({each.times for each in found}) > 1:
        return None
    first = found[0]
    text = f"the loss is a sum over samples, divided by {first.count:g}, the count of all {world_size} ranks together"
    if first.times > 1:
        return passed(f"{text}, and multiplied by {world_size}, as the mean over ranks divides again")
    return failed(
        f"at {len(found)} steps {text}, and the gradients of all ranks are averaged, which divides by {world_size} again",
        fix="Multiply the loss by the world size: `loss_sum * dist.get_world_size() / count`.",
        at=first.step.at,
    )


def _takes_the_mean(observed: Observed, tolerance: float) -> bool:
    """Return whether steps use the mean over all ranks of what these computed, but for a factor that is 1 within the tolerance."""
    models = list(observed.of(RecordedModels))
    found = [each for optimizer in optimizers(observed) for each in optimizer.reductions]
    is_mean = all(
        len(each.ranks) == observed.world_size and each.factor is not None and abs(each.factor - 1) < tolerance
        for each in found
    )
    return (bool(found) and is_mean) or (bool(models) and all(each.averaged for each in models))


def _counted_apart(case: Case) -> Result | None:
    """Find losses that each rank divides by a count of its own, of which ranks have unequal ones, before the mean over ranks."""
    if not _takes_the_mean(case.observed, inf):
        return None
    steps = list(counted_steps(case.observed))
    unequal = [each for each in steps if each.ratio > (_UNEQUAL if each.is_sum else _UNEQUAL_MEAN)]
    if len(steps) < MIN_STEPS or 2 * len(unequal) < len(steps):
        return None
    first = unequal[0]
    few, many = min(first.counts, key=first.counts.__getitem__), max(first.counts, key=first.counts.__getitem__)
    return warned(
        f"at {len(unequal)} of {format_count(len(steps), 'step')} each rank divides its loss by the count of its own targets (rank "
        f"{few}: {first.counts[few]:.4g}, rank {many}: {first.counts[many]:.4g}), and the gradients of all ranks are averaged: a "
        f"target of rank {few} counts {first.ratio:.2f} times as much as one of rank {many}",
        fix="Divide by the count of all ranks, and multiply by the world size, as the mean over ranks divides again: "
        "`dist.all_reduce(count)`, then `loss_sum * dist.get_world_size() / count`.",
        at=first.at,
    )


def _wrong_factor(factor: Factor, case: Case) -> Result:
    world_size, scale = case.observed.world_size, 1.0 / factor.value
    times = f"1/{factor.value:.2f} of" if factor.value > 1 else f"{scale:.2f} times"
    text = f"gradients at world size {world_size} are {times} those of one rank with the same batches"
    if factor.value > 1:
        why = "the loss is a sum over samples, or is divided by the world size although DDP already takes the mean"
        fix = 'Take the mean over the samples of the rank (reduction="mean"), and leave the mean over ranks to DDP.'
        if abs(factor.value / sqrt(world_size) - 1) < LOSS_FACTOR and (given := _summed_copies(case)):
            why = (
                f"that is the square root of {world_size}, and {len(given)} times all ranks gave the same number to an all_reduce "
                f"({given[0]:.3g}, then {given[1]:.3g}), as if gradients were clipped by a norm that counts the copy of each rank"
            )
            fix = "Sum squares over ranks only for what is sharded: every rank has the whole of a gradient that was reduced."
        elif abs(factor.value / world_size - 1) < LOSS_FACTOR and (reduced := _reduced_in_forward(case)):
            why = (
                f"the loss depends on the all_reduce{where(reduced.at)}, whose backward pass gives each rank only its own part of the "
                "gradient, of which DDP takes the mean again; or the loss is divided by the world size besides"
            )
            fix = "Use `torch.distributed.nn.functional.all_reduce` in the loss: its backward pass adds up the gradients of all ranks."
    else:
        why = "the loss is multiplied by the world size, or gradients are summed over ranks but not divided"
        fix = "Divide summed gradients by the world size, and do not multiply the loss."
    return failed(f"{text}: {why}", fix=fix, at=step_place(case))


def _reduced_in_forward(case: Case) -> Collective | None:
    """Return an all_reduce of a tensor that has a gradient, if there is one for nearly every step."""
    found = [each for each in case.observed.ranks[0].of(Collective) if each.through]
    steps = sum(1 for _ in case.observed.ranks[0].of(OptimizerStep))
    return found[0] if found and len(found) + 1 >= steps else None


def _summed_copies(case: Case) -> list[float]:
    """Return the numbers that each rank gave alike to an all_reduce over all ranks; none if there are fewer than steps."""
    size = case.observed.world_size
    given = [
        [
            each.values
            for each in rank.of(Collective)
            if each.op == "all_reduce" and len(each.values) == 1 and len(each.group) == size
        ]
        for rank in case.observed
    ]
    steps = min(sum(1 for _ in rank.of(OptimizerStep)) for rank in case.observed)
    same = [values[0][0] for values in zip(*given, strict=False) if len(set(values)) == 1 and values[0][0] > 0]
    return same if steps <= len(same) and len(set(same)) > MIN_STEPS else []


def _rate_scaled_twice(steps: Sequence[ReplayedStep], world_size: int) -> str:
    """Return the evidence that a learning rate grew by more than the world size. A warm-up is not compared."""
    firsts = {step.optimizer: step for step in reversed(steps)}
    for optimizer, first in sorted(firsts.items()):
        own = [step for step in steps if step.optimizer == optimizer]
        pairs = zip(first.settings, first.recorded_settings, strict=False)
        for group, (single, recorded) in enumerate(pairs):
            all_steps = [step.recorded_settings[group] for step in own if group < len(step.recorded_settings)]
            for name, one, many in (*_fixed_rates(single, recorded, all_steps), *_settled_rate(own, group)):
                if one > 0 and many / one > world_size * (1 + RATE_FACTOR):
                    return (
                        f"{name} is {one:.3g} at world size 1 and {many:.3g} at world size {world_size}: it grows {many / one:.3g} "
                        f"times for {world_size} times as many samples, so it is scaled more than once"
                    )
    return ""


def _settled_rate(steps: Sequence[ReplayedStep], group: int) -> Iterator[tuple[str, float, float]]:
    """Yield the learning rate after a warm-up, if a schedule that both runs have in common is all that still changes it."""
    pairs = [list(zip(step.settings, step.recorded_settings, strict=False))[group : group + 1] for step in steps]
    rates = [(one.get("lr", 0.0), many.get("lr", 0.0)) for pair in pairs for one, many in pair]
    last = rates[-MIN_STEPS:]
    if len(last) < MIN_STEPS or any(one <= 0 for one, _ in last) or any(_reacts(*each) for each in pairwise(rates)):
        return
    ratios = [many / one for one, many in last]
    rises = any(then > one or now > many for (one, many), (then, now) in pairwise(last))
    if not rises and max(ratios) - min(ratios) <= ROUNDING_64_BIT * max(ratios):
        yield _RATES["lr"], *last[-1]


def _reacts(before: tuple[float, float], after: tuple[float, float]) -> bool:
    """Return whether the rate of one rank fell by more, as if its scheduler watched the loss; in a warm-up that of all ranks rises."""
    (one, many), (then, now) = before, after
    return now <= many and then * many < now * one * (1 - ROUNDING_64_BIT)


def _fixed_rates(
    single: Settings, recorded: Settings, all_steps: Sequence[Settings]
) -> Iterator[tuple[str, float, float]]:
    for key, name in _RATES.items():
        one, many = single.get(key), recorded.get(key)
        if one is not None and many is not None and (key != "lr" or all(step.get("lr") == many for step in all_steps)):
            yield name, one, many
