"""Judge whether one rank with the same global batches computes the same gradients."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.evidence.epochs import pairs_text
from compose_sim.core.checks.evidence.replay_diff import (
    alone_steps,
    beyond_tolerance,
    comparable,
    constant_factor,
    explained,
    hooks,
    noise,
    reason_against,
    step_place,
    steps_of,
    tolerance_of,
    trains_apart,
    why_not_joined,
)
from compose_sim.core.checks.evidence.same_samples import pairs_with_the_same
from compose_sim.core.units import format_count
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.replays import (
    RecordedModels,
    RecordedStep,
    RecordingStopped,
    ReplayedStep,
    ReplayEnd,
    ReplayFailed,
    ReplayMisaligned,
)

QUESTION = "Does one rank with the same global batches compute the same?"
_FIX = (
    "Find what depends on the world size in the loss of this step: a gather without gradient, parameters used outside DDP, a branch "
    "on the rank. The gradient must be the mean over ranks."
)
_FIX_OWN = (
    "Divide by a count over all ranks (`dist.all_reduce(count)`, then multiply by the world size, since DDP takes the mean), gather "
    "with gradient the samples that are compared, clip after backward. Mixing samples of a batch (mixup) is no mistake; for this and "
    "what else is intentional: `--skip matches-single`."
)
_FIX_PARTS = (
    "Reduce the gradients of the parameters that all ranks hold: each rank computes them from its part of the samples or of the "
    "sequence, as in `dist.all_reduce(norm.weight.grad)`."
)
_FIX_SCALE = "See loss-scale."
_ONLY_CHECK = "only `composesim check` replays the script"
_CLEARLY = 5.0  # times the tolerance
_CLEARLY_LOW = 0.25  # in low precision


def judge(case: Case) -> Result:
    """Compare the gradients of the recorded steps on all ranks with those of one rank with the same batches."""
    why = why_not(case)
    if why:
        return not_applicable(why)
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
        return passed(
            f"{format_count(len(steps), 'step')} repeated by one rank: gradients agree within {_worst(steps)}"
        )
    if bad and bad[0].in_parts:
        return failed(
            f"{_step_text(bad[0])}: all ranks hold this parameter, and its gradient differs from that of one rank with the whole "
            f"batch and all parts of the other parameters ({_numbers(bad[0])})",
            fix=_FIX_PARTS,
            at=step_place(case),
        )
    parts = _parts_of_samples(case)
    if parts:
        return not_applicable(parts)
    factor = constant_factor(steps, case)
    if factor is not None:
        reason = explained(factor)
        if reason:
            return not_applicable(f"{reason}, so one rank with {case.observed.world_size} of them differs")
        text = f"gradients of one rank are {factor.value:.3g} times those of {case.observed.world_size} ranks, at every step"
        return failed(f"{_step_text(bad[0])}: {text}", fix=_FIX_SCALE, at=step_place(case))
    return _judge_alone(case, bad)


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
        return "gradients are zero or not finite"
    return ""


def _why_it_ended(case: Case) -> str:
    end = case.single.first(ReplayEnd) if case.single else None
    misaligned = case.single.first(ReplayMisaligned) if case.single else None
    if misaligned is not None and misaligned.fetched != misaligned.recorded_fetched:
        return (
            f"the script takes {misaligned.fetched} batches for its first step at world size 1, but "
            f"{misaligned.recorded_fetched} per rank in the recorded run"
        )
    return end.why if end else "at world size 1 the script ended before its first optimizer step"


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
        where = _step_text(bad[0]) if bad else "the first step"
        return not_applicable(
            reason or f"{where}: one rank differs, but each rank's batches could not be repeated alone"
        )
    if any(step.by_value for step in steps):
        return not_applicable("gradients are clipped by value, so means cannot be compared")
    if factor is not None:
        text = f"each rank alone has gradients {factor.value:.3g} times those of {case.observed.world_size} ranks"
        return failed(text, fix=_FIX_SCALE, at=step_place(case))
    return failed(
        f"{_step_text(differing[0])}: its gradient on {case.observed.world_size} ranks differs from that of one rank with the same "
        f"batches, and from the mean of the ranks' own gradients ({_numbers(differing[0])})",
        fix=_FIX,
        at=step_place(case),
    )


def _own_loss(case: Case, bad: Sequence[ReplayedStep]) -> Result | None:
    """Warn if each rank by itself is right, but at most steps all of them together clearly differ from one rank."""
    steps = comparable(steps_of(case.single))
    if not bad or any(step.by_value for step in steps):
        return None
    if median((step.difference or 0.0) / _clear(step, case) for step in steps) < 1.0:
        return None
    worst = max(bad, key=lambda step: step.difference or 0.0)
    return warned(
        f"{_step_text(worst)}: one rank with the batches of all {case.observed.world_size} has another gradient ({_numbers(worst)}), "
        "although each rank alone has the gradient that it contributed: its loss is divided by its own count or padded length, "
        "mixes or compares only its own samples, or its gradient is clipped before the mean",
        fix=_FIX_OWN,
        at=step_place(case),
    )


def _clear(step: ReplayedStep, case: Case) -> float:
    return _CLEARLY_LOW if step.precision == "low" else _CLEARLY * tolerance_of(step, case)


def _step_text(step: ReplayedStep) -> str:
    return f"step {step.step + 1}, {step.tensor}"


def _numbers(step: ReplayedStep) -> str:
    return f"relative difference {step.difference:.2g}, cosine {step.cosine:.3f}, ratio of norms {step.ratio:.3g}"


def _worst(steps: Sequence[ReplayedStep]) -> str:
    return f"{max(step.difference or 0.0 for step in steps):.1e}"
