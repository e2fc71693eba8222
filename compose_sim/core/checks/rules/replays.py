"""Judge whether one rank that repeats the recorded steps computes the same, and find legitimate reasons for a difference."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from compose_sim.core.checks import (
    Case,
    Result,
    check,
    failed,
    not_applicable,
    passed,
    warned,
    where,
    why_no_step,
)
from compose_sim.core.checks.epochs import pairs_text
from compose_sim.core.checks.loss_counts import divided_losses
from compose_sim.core.checks.repeated_steps import (
    beyond_tolerance,
    comparable,
    constant_factor,
    explained,
    has_gradient,
    noise,
    only_scaled,
    step_place,
    steps_of,
    tolerance_of,
)
from compose_sim.core.checks.replica_diff import exchanges_activations
from compose_sim.core.checks.rules.samples import pairs_with_the_same
from compose_sim.core.checks.rules.slopes import MIN_PROBED_STEPS, judge_slopes, wrong_pairs
from compose_sim.core.checks.rules.updates import judge_update, never_updated
from compose_sim.core.checks.sketches import optimizers
from compose_sim.core.checks.tolerances import PARALLEL
from compose_sim.core.events.observations import Observed
from compose_sim.core.text import format_count
from compose_sim.node.records.data import EpochProgress, Join
from compose_sim.node.records.gradients import LossSlope, SketchedStep
from compose_sim.node.records.models import OptimizerStep, TensorTable
from compose_sim.node.records.process_groups import Collective, UntrackedWait
from compose_sim.node.records.replays import (
    ChosenSamples,
    RecordedModels,
    RecordedStep,
    RecordingStopped,
    ReplayedStep,
    ReplayEnd,
    ReplayFailed,
    ReplayMisaligned,
)
from compose_sim.node.records.script import ScriptEnd

_FIX_SCALE = "See loss-scale."
_ONLY_CHECK = "only `composesim check` replays the script"
_CLEAR = 5.0  # times the tolerance
_CLEAR_16_BIT = 0.25  # the same in low precision


@check(
    "matches-single",
    "Does one rank with the same global batches compute the same?",
    may_follow=(
        "wrapper-bypassed",
        "params-after-wrap",
        "gradient-mean",
        "gradient-clipping",
        "loss-scale",
        "rank-confusion",
        "sampler-overlap",
        "replicated-tensors",
        "params-in-sync",
        "nondeterminism",
    ),
)
def matches_single(case: Case) -> Result:
    """Compare the gradients of the recorded steps on all ranks with those of one rank with the same batches."""
    left = never_updated(case.observed) or wrong_pairs(case)
    if left:
        return left
    why = why_not(case)
    if why:
        return judge_update(case) or judge_slopes(case) or not_applicable(why)
    if trains_apart(case.observed):
        return not_applicable(
            "every forward pass before a step ran in no_sync(), so each rank steps with its own gradient"
        )
    different = noise(case.observed)
    if different:
        return not_applicable(f"{different}, so one rank with all batches rightly computes something else")
    steps = comparable(steps_of(case.single))
    bad = beyond_tolerance(steps, case)
    if steps and not bad:
        chosen = _other_choice(case, steps)
        if chosen:
            return chosen
        parts = f" ({format_count(steps[0].parts, 'parameter')} held in parts)" if steps[0].parts else ""
        repeated = format_count(len({each.step for each in steps}), "step")
        return passed(f"{repeated} repeated by one rank: gradients agree within {_worst(steps)}{parts}")
    if bad and bad[0].parts:
        return _in_parts(bad[0], case)
    if bad and _exchanges_only_forward(case.observed):
        return not_applicable(
            "ranks exchange tensors in forward, and nothing in backward: each may train a model of its own"
        )
    parts = _parts_of_samples(case)
    if parts:
        return not_applicable(parts)
    factor = constant_factor(steps, case)
    if factor is not None:
        reason = explained(factor)
        if factor.is_by_hand:
            return not_applicable(reason)
        if reason:
            return not_applicable(f"{reason}, so one rank with {case.observed.world_size} of them differs")
        text = f"gradients of one rank are {factor.value:.3g} times those of {case.observed.world_size} ranks, at every step"
        return failed(f"{_step_text(bad[0])}: {text}", fix=_FIX_SCALE, at=step_place(case))
    return _judge_alone(case, bad)


_AGREE, _DIFFER, _SHARED = 0.02, 0.25, 0.05  # of the samples of a passage
_MIN_CHOSEN = 64
_ROUNDED = 1e-4  # of gradients: more may change what is drawn


def _other_choice(case: Case, steps: Sequence[ReplayedStep]) -> Result | None:
    """
    Warn if one rank would go on with other samples, although it computes the same, and began with the same ones.

    Ranks must have had samples in common, as of draws with replacement: then all draw together, and none from a part of its own.
    """
    found = list(case.single.of(ChosenSamples)) if case.single else []
    exact = all(each.precision != "low" and (each.difference or 0.0) <= _ROUNDED for each in steps)
    if not found or not exact:
        return None
    first, *later = found
    drawn_together = all(each.shared >= _SHARED * each.drawn for each in found)
    other = next((each for each in later if each.others >= _DIFFER * each.drawn and each.drawn >= _MIN_CHOSEN), None)
    if (
        not (first.ended and first.others <= _AGREE * first.drawn and drawn_together)
        or other is None
        or other.data != first.data
    ):
        return None
    return warned(
        f"one rank computes the same gradients, and first drew the same samples of {other.data} as all {case.observed.world_size} "
        f"ranks together, but later {other.others} of {other.drawn} differ{where(other.at)}: what they are chosen by, such as a "
        "loss of each sample, depends on the number of ranks",
        fix="If ranks compute a number for each sample, put the numbers back in the order of the data set when they are gathered: "
        "with DistributedSampler, rank r has the samples r, r + world size, …, so `torch.stack(gathered, dim=1).flatten()`.",
        at=other.at,
    )


def may_be_probed(case: Case) -> bool:
    """Return whether nothing else compares the gradients of this run, and the n-th step of a rank is that of all others."""
    measured = {sum(1 for _ in rank.of(LossSlope)) for rank in case.observed}
    made = {each.steps for each in case.observed.of(ScriptEnd)}
    aligned = len(measured) == 1 and len(made) < 2 and not any(each.enabled for each in case.observed.of(Join))
    slopes = [*case.observed.of(LossSlope)]
    has_losses = any(each.loss is not None for each in slopes) and not any(each.is_cut for each in slopes)
    is_long = case.verdict == "passed" and case.observed.world_size > 1 and max(measured, default=0) >= MIN_PROBED_STEPS
    have_own = case.single is not None and any(each.have_own for each in case.single.of(ReplayEnd))  # in its own loss
    return is_long and aligned and has_losses and not have_own and bool(why_not(case)) and judge_update(case) is None


def _in_parts(step: ReplayedStep, case: Case) -> Result:
    """Say what differs of ranks that hold parts of parameters."""
    one = "one rank with the whole batch and all parts of the parameters"
    # Ranks that send each other samples, as experts do, may drop some of them or balance their own.
    is_certain = (step.cosine or 0.0) > PARALLEL or not _sends_samples(case.observed)
    if step.of_update:
        return (failed if step.stage is None else warned)(  # each stage may be meant to clip by itself
            f"{_step_text(step)}: its gradient is that of {one}, but the step changes it otherwise ({_numbers(step)}), as if each rank "
            "clips by the norm of what it holds",
            fix="Clip by the norm of the whole gradient: add up the squares of the parts over the ranks, and count what all ranks hold "
            "once.",
            at=step_place(case),
        )
    if step.stage is not None:
        return failed(
            f"{_step_text(step)}: only rank {step.stage} holds this parameter, and its gradient differs from that of one rank with all "
            f"stages and the same samples ({_numbers(step)})",
            fix="Find what a stage overwrites before its backward pass (a buffer that it receives into again), leaves out, or divides "
            "by another number of micro-batches.",
            at=step_place(case),
            ranks=(step.stage,),
        )
    if step.is_part:
        return (failed if is_certain else warned)(
            f"{_step_text(step)}: ranks hold parts of this parameter, and the gradients of the parts, put together, differ from that "
            f"of {one} ({_numbers(step)})",
            fix="Find what each rank adds, divides or leaves out: a bias that it adds before a sum over ranks, a sum without a "
            "gradient, gradients that ranks with different parts reduce.",
            at=step_place(case),
        )
    return (failed if is_certain else warned)(
        f"{_step_text(step)}: all ranks hold this parameter, and its gradient differs from that of {one} ({_numbers(step)})",
        fix="If each rank computes it from a part of the samples or of the sequence, reduce it (`dist.all_reduce(norm.weight.grad)`). "
        "If the layer after it is divided by columns or heads, the backward pass must all-reduce the gradient of that layer's input. "
        "Otherwise find what is added once per rank, such as a bias before a sum.",
        at=step_place(case),
    )


def _parts_of_samples(case: Case) -> str:
    """Return why one rank may differ if FSDP ranks of a smaller group share samples: each may train on its part of a sequence."""
    models = list(case.observed.of(RecordedModels))
    if not any(each.sharded and not each.divided_by_fsdp for each in models):
        return ""
    same = pairs_with_the_same(case)
    return f"{pairs_text(same)} train on the same samples, each perhaps on a part of them" if same else ""


def why_not(case: Case) -> str:
    """Return why there is nothing to compare; "" if there is."""
    if case.single is None:
        is_recorded = case.observed.first(RecordedStep) or case.observed.first(RecordingStopped)
        if case.observed.first(OptimizerStep) and not (is_recorded or case.why_no_single):
            return _ONLY_CHECK  # `up` records no steps
        return case.why_no_single or reason_against(case.observed) or _ONLY_CHECK
    steps = steps_of(case.single)
    failure = case.single.first(ReplayFailed)
    if not steps and failure is not None:
        return f"the steps could not be repeated: {failure.traceback.strip().splitlines()[-1]}"
    if not steps:
        return case.why_no_single or _why_it_ended(case)
    if not comparable(steps) and not why_not_joined(case.single):
        return "gradients are zero, only rounding, or not finite"
    return ""


def _why_it_ended(case: Case) -> str:
    end = case.single.first(ReplayEnd) if case.single else None
    misaligned = case.single.first(ReplayMisaligned) if case.single else None
    if misaligned is not None and misaligned.fetched != misaligned.recorded_fetched:
        return (
            f"the script takes {misaligned.fetched} batches for its first step at world size 1, but "
            f"{misaligned.recorded_fetched} per rank in the recorded run"
        )
    if end is not None:
        return end.why
    return f"at world size 1 the script ended before its first optimizer step{why_no_step(case.single) if case.single else ''}"


def _judge_alone(case: Case, bad: Sequence[ReplayedStep]) -> Result:
    """Judge whether each rank computes what it would alone, which the joined batches do not show."""
    steps = alone_steps(case)
    reason = why_not_joined(case.single)
    differing = beyond_tolerance(steps, case)
    if steps and not differing:
        because = reason or "joined batches have another loss, because it is not a mean over samples"
        return _own_loss(case, bad) or passed(
            f"{format_count(len(steps), 'step')} repeated with each rank's batches alone: "
            f"the mean agrees within {_worst(steps)} with what DDP computed ({because})"
        )
    custom = hooks(case.observed)
    if custom:
        return not_applicable(f"the communication hook {custom[0]} changes gradients")
    factor = constant_factor(steps, case)
    if factor is None and (not steps or not bad):  # a loss may rightly weight ranks, which no rank alone can know
        return _not_alone(case, bad) or not_applicable(
            reason or "the steps differ by little, and each rank's batches could not be repeated alone"
        )
    if any(step.by_value for step in steps):
        return not_applicable("gradients are clipped by value, so means cannot be compared")
    if factor is not None and (why := explained(factor)):
        return not_applicable(why)
    if factor is not None:
        text = f"each rank alone has gradients {factor.value:.3g} times those of {case.observed.world_size} ranks"
        return failed(text, fix=_FIX_SCALE, at=step_place(case))
    may_be_padding = all(step.collated for step in bad)
    if may_be_padding and next(divided_losses(case.observed), None):
        return not_applicable(
            "one rank pads the samples to other lengths, and no rank alone has the count of all ranks that the loss is divided by"
        )
    multiples = only_scaled(case)
    each_is = ", each tensor's by a factor, which hardly changes the steps of this optimizer" if multiples else ""
    return (warned if multiples or may_be_padding else failed)(
        f"{_step_text(differing[0])}: its gradient on {case.observed.world_size} ranks differs from that of one rank with the same "
        f"batches, and from the mean of the ranks' own gradients ({_numbers(differing[0])}){each_is}",
        fix="Find what depends on the world size in the loss of this step: a gather without gradient, parameters used outside DDP, "
        "a branch on the rank. The gradient must be the mean over ranks.",
        at=step_place(case),
    )


def _not_alone(case: Case, bad: Sequence[ReplayedStep]) -> Result | None:
    """
    Report that at most steps all ranks together clearly differ from one rank; whether each by itself is right is not known.

    If gradients flow between ranks in each backward pass, they compute one loss together, and no rank may be right by itself.
    """
    worst = _clearly_different(case, bad)
    if worst is None:
        return None
    steps = list(case.observed.of(SketchedStep))
    together = bool(steps) and all(each.in_backward for each in steps)
    why = (
        "but ranks exchange tensors with a gradient, to compute one loss together"
        if together
        else "and whether each rank alone has the gradient that it contributed could not be tried"
    )
    return (failed if together else warned)(
        f"{_step_text(worst)}: one rank with the batches of all {case.observed.world_size} has another gradient ({_numbers(worst)}), "
        f"{why}",
        fix="Find what depends on the world size in the loss of this step: a count or mean over the rank's own samples, a gather or "
        "reduction without gradient, labels, positions or a mask that count from 0 on every rank. If it is intentional: "
        "`--skip matches-single`.",
        at=step_place(case),
    )


def _clearly_different(case: Case, bad: Sequence[ReplayedStep]) -> ReplayedStep | None:
    """Return the step that differs most if at most steps all ranks together differ by far more than rounding."""
    steps = comparable(steps_of(case.single))
    if not bad or any(step.by_value for step in steps):
        return None
    if median((step.difference or 0.0) / _clear(step, case) for step in steps) < 1.0:
        return None
    return max(bad, key=lambda step: step.difference or 0.0)


def _own_loss(case: Case, bad: Sequence[ReplayedStep]) -> Result | None:
    """Warn if each rank by itself is right, but at most steps all of them together clearly differ from one rank."""
    worst = _clearly_different(case, bad)
    if worst is None:
        return None
    return warned(
        f"{_step_text(worst)}: one rank with the batches of all {case.observed.world_size} has another gradient ({_numbers(worst)}), "
        "although each rank alone has the gradient that it contributed: its loss is divided by its own count or padded length, "
        "mixes or compares only its own samples, or its gradient is clipped before the mean",
        fix="Divide by a count over all ranks (`dist.all_reduce(count)`, then multiply by the world size, since DDP takes the "
        "mean), gather with gradient the samples that are compared, clip after backward. Mixing samples of a batch (mixup) is no "
        "mistake; for this and what else is intentional: `--skip matches-single`.",
        at=step_place(case),
    )


def _clear(step: ReplayedStep, case: Case) -> float:
    return _CLEAR_16_BIT if step.precision == "low" else _CLEAR * tolerance_of(step, case)


def _step_text(step: ReplayedStep) -> str:
    return f"step {step.step + 1}, {step.tensor}"


def _numbers(step: ReplayedStep) -> str:
    whole = f"cosine {step.cosine:.3f}, ratio of norms {step.ratio:.3g}"
    return f"relative difference {step.difference:.2g}; of all gradients together: {whole}"


def _worst(steps: Sequence[ReplayedStep]) -> str:
    return f"{max(step.difference or 0.0 for step in steps):.1e}"


_MAX_RANKS_ALONE = 8
_OUTSIDE = ("ZeroRedundancyOptimizer", "PostLocalSGDOptimizer")


def reason_against(observed: Observed) -> str:
    """Return why one rank cannot repeat the run; "" if it can."""
    if observed.world_size < 2:
        return "the run had one rank"
    first = observed.ranks.get(0)
    steps = list(first.of(RecordedStep)) if first else []
    models = list(first.of(RecordedModels)) if first else []
    stopped = first.last(RecordingStopped) if first else None
    if stopped and stopped.reason in ("closure", "failed", "unsaved") and not stopped.steps:
        return _last_line(stopped.detail)
    if not steps:
        return "no optimizer step was seen"
    return _reason_against_models(observed, models) or (
        "" if any(step.fetched or step.inputs for step in steps) else "no model was seen to be given a batch"
    )


def _reason_against_models(observed: Observed, models: Sequence[RecordedModels]) -> str:
    world_size = observed.world_size
    for each in models:
        outside = [name for name in each.optimizer_types if name in _OUTSIDE]
        if outside:
            return f"{outside[0]} keeps part of its state on each rank"
        if each.sharded:
            continue  # ranks that share parameters are one rank in a replay
        if not each.ranks and (_averages_by_hand(observed) or _computes_together(observed) or _are_stages(observed)):
            continue
        if not each.ranks:
            return "no model is wrapped in DistributedDataParallel"
        if any(ranks != world_size for ranks in each.ranks):
            return f"DistributedDataParallel joins {min(each.ranks)} of {world_size} ranks"
        lossy = [name for name in each.hooks if "powersgd" in name.lower() or "quantiz" in name.lower()]
        if lossy:
            return f"the communication hook {lossy[0]} approximates gradients"
    return ""


def _averages_by_hand(observed: Observed) -> bool:
    """Return whether every optimizer steps with a combination of the gradients that all ranks computed."""
    found = optimizers(observed)
    return bool(found) and all(
        any(
            len(reduction.ranks) == observed.world_size and len(reduction.rows) == len(each.rows)
            for reduction in each.reductions
        )
        for each in found
    )


def _computes_together(observed: Observed) -> bool:
    """Return whether ranks exchange tensors in every pass, but neither samples nor messages: they divide one computation."""
    steps = list(observed.of(SketchedStep))
    apart = _sends_samples(observed) or observed.first(UntrackedWait)
    are_joined = all(each.in_backward for each in steps) or exchanges_activations(observed)
    return bool(steps) and are_joined and not apart


def _exchanges_only_forward(observed: Observed) -> bool:
    """Return whether nothing but activations may join the ranks."""
    is_wrapped = any(each.ranks or each.sharded for each in observed.of(RecordedModels))
    is_joined = _averages_by_hand(observed) or _are_stages(observed)
    return not (is_wrapped or is_joined or all(each.in_backward for each in observed.of(SketchedStep)))


def _are_stages(observed: Observed) -> bool:
    """Return whether all ranks step equally often, send each other messages and hold other parameters, as stages of a pipeline do."""
    steps = {sum(1 for _ in rank.of(OptimizerStep)) for rank in observed}
    sends = all(any("send" in each.how or "recv" in each.how for each in rank.of(UntrackedWait)) for rank in observed)
    tables = [rank.first(TensorTable) for rank in observed]
    shapes = {tuple(row.shape for row in each.rows if row.kind == "parameter") for each in tables if each}
    return sends and len(steps) == 1 and steps != {0} and len(shapes) > 1


def _sends_samples(observed: Observed) -> bool:
    return any(each.op.startswith(("all_to_all", "scatter")) for each in observed.of(Collective))


def trains_apart(observed: Observed) -> bool:
    """Return whether no sampled step was preceded by a reduction, as in local SGD, which averages parameters now and then."""
    models = [model for step in observed.of(OptimizerStep) for model in step.models if model.forwards]
    return bool(models) and not any(model.reduced for model in models)


def hooks(observed: Observed) -> tuple[str, ...]:
    """Return the communication hooks that do more than DDP's own averaging."""
    names = {name for each in observed.of(RecordedModels) for name in each.hooks}
    return tuple(sorted(name for name in names if name != "allreduce_hook"))


def evaluates(observed: Observed) -> bool:
    """Return whether a loader is read to its end without training: perhaps an evaluation."""
    return any(each.only_read for each in observed.of(EpochProgress))


def other_batches(replay: Observed | None) -> int:
    """Return how many different batches ranks made for a step of which one rank made another; 0 if it repeated any step."""
    ends = [] if steps_of(replay) or replay is None else list(replay.of(ReplayEnd))
    return max((each.other_batches for each in ends), default=0)


def why_not_joined(replay: Observed | None) -> str:
    """Return why the batches of the first step that was not comparable could not be joined; "" if all could."""
    return next((step.why_not for step in steps_of(replay) if step.why_not), "")


def needs_alone(case: Case) -> bool:
    """Return whether to repeat each rank's batches alone: with all of them together, the steps differ for no simple reason."""
    world_size = case.observed.world_size
    steps = comparable(steps_of(case.single))
    makes_batches = not any(step.fetched for step in case.observed.of(RecordedStep))  # no rank can repeat that alone
    if not steps_of(case.single) or world_size > _MAX_RANKS_ALONE or noise(case.observed) or makes_batches:
        return False
    if not steps:
        return bool(why_not_joined(case.single))
    return bool(beyond_tolerance(steps, case)) and constant_factor(steps, case) is None


def alone_steps(case: Case) -> list[ReplayedStep]:
    """Return the steps that every rank repeated alone, with the mean of the ranks compared with what DDP computed."""
    last = max(case.alone, default=None)
    if last is None or len(case.alone) < case.observed.world_size:
        return []
    return [step for step in steps_of(case.alone[last]) if has_gradient(step)]


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
