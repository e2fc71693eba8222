"""Does one rank with the same global batches compute the same?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.evidence.replay_diff import (
    alone_steps,
    comparable,
    constant_factor,
    explained,
    hooks,
    noise,
    parted,
    reason_against,
    steps_of,
    tolerance_of,
)
from compose_sim.core.events.observations import Observation

QUESTION = "Does one rank with the same global batches compute the same?"
_FIX = (
    "find what depends on the world size in the loss of this step: a gather without gradient, "
    "parameters used around DDP, a branch on the rank; the gradient must be the mean over ranks"
)
_FIX_OWN = (
    "Divide by what all ranks count together (`dist.all_reduce(count)`, and times the world size, as DDP takes the mean), "
    "gather with gradient what samples are compared with, clip after backward. If it is meant so: `--skip matches-single`."
)
_CLEARLY = 5.0  # times the tolerance
_CLEARLY_LOW = 0.25  # where few digits are computed with


def judge(case: Case) -> Result:
    """Gradients of the recorded steps, as all ranks made them and as one rank makes them with the same batches."""
    why = why_not(case)
    if why:
        return not_applicable(why)
    different = noise(case.observed)
    if different:
        return not_applicable(f"{different}, so that one rank with all batches rightly computes something else")
    steps = comparable(steps_of(case.single))
    bad = parted(steps, case)
    if steps and not bad:
        return passed(f"{_count(steps)} repeated by one rank: gradients agree within {_worst(steps)}")
    factor = constant_factor(steps, case)
    if factor is not None:
        reason = explained(factor)
        if reason:
            return not_applicable(f"{reason}, so that one rank with {case.observed.world_size} of them differs")
        text = f"gradients of one rank are {factor.value:.3g} times those of {case.observed.world_size} ranks, at every step"
        return failed(f"{_where(bad[0])}: {text}", fix="mend what loss-scale says", **place(case))
    return _judge_alone(case, bad)


def why_not(case: Case) -> str:
    """Why there is nothing to compare; nothing where there is."""
    if case.single is None:
        return (
            case.why_no_single
            or reason_against(case.observed)
            or "`composesim check` runs the script once more for this"
        )
    steps = steps_of(case.single)
    failure = next(case.single.of("replay-failed"), None)
    if not steps and failure is not None:
        return f"the steps could not be repeated: {str(failure['traceback']).strip().splitlines()[-1]}"
    if not steps:
        return case.why_no_single or _why_it_ended(case)
    if not comparable(steps) and not any(step["why_not"] for step in steps):
        return "gradients are zero or not finite"
    return ""


def _why_it_ended(case: Case) -> str:
    end = next(case.single.of("replay-end"), None) if case.single else None
    misaligned = next(case.single.of("replay-misaligned"), None) if case.single else None
    if misaligned is not None and not misaligned["shapes"]:
        recorded, now = misaligned["recorded"], misaligned["now"]
        return (
            f"at world size 1 the script takes {now[1]} batches for its first step, and {recorded[1]} on a rank of many"
        )
    return str(end["why"]) if end else "at world size 1 the script ended before its first optimizer step"


def _judge_alone(case: Case, bad: Sequence[Observation]) -> Result:
    """What the ranks' batches joined do not show: whether each rank computes what it would alone."""
    steps = alone_steps(case)
    first = bad[0] if bad else None
    reason = next((str(step["why_not"]) for step in steps_of(case.single) if step["why_not"]), "")
    if steps and not parted(steps, case):
        own = _own_loss(case, bad)
        if own:
            return own
        because = reason or "joined batches give another loss, as it is no mean over samples"
        return passed(
            f"{_count(steps)} repeated by each rank's batches alone: "
            f"their mean agrees within {_worst(steps)} with what DDP made ({because})"
        )
    custom = hooks(case.observed)
    if custom:
        return not_applicable(f"the communication hook {custom[0]} changes gradients")
    factor = constant_factor(steps, case)
    if factor is None and (not steps or first is None):  # a loss may rightly weigh ranks, which no rank alone can know
        return not_applicable(
            reason or f"{_where(first)}: one rank differs, but it could not be repeated with each rank's batches alone"
        )
    if any(step["by_value"] for step in steps):
        return not_applicable("gradients are clipped by value, after which means cannot be compared")
    if factor is not None:
        text = f"each rank alone has gradients {factor.value:.3g} times those of {case.observed.world_size} ranks"
        return failed(text, fix="mend what loss-scale says", **place(case))
    worst = parted(steps, case)[0]
    text = f"{_where(worst)}: its gradient on {case.observed.world_size} ranks is not that of one rank with the same batches"
    return failed(f"{text}, and not the mean of the ranks' own ({_numbers(worst)})", fix=_FIX, **place(case))


def _own_loss(case: Case, bad: Sequence[Observation]) -> Result | None:
    """Each rank is right by itself, and all of them together are not what one rank would be: clearly so, at most steps."""
    steps = comparable(steps_of(case.single))
    if not bad or any(step["by_value"] for step in steps):
        return None
    if median(float(step["difference"] or 0.0) / _clear(step, case) for step in steps) < 1.0:
        return None
    worst = max(bad, key=lambda step: float(step["difference"] or 0.0))
    return warned(
        f"{_where(worst)}: one rank with the batches of all {case.observed.world_size} has another gradient ({_numbers(worst)}), "
        "while each rank alone has what it gave to the mean: its loss is divided by a count of its own, compares only its own samples, "
        "or its gradient is clipped before the mean",
        fix=_FIX_OWN,
        **place(case),
    )


def _clear(step: Observation, case: Case) -> float:
    return _CLEARLY_LOW if step["precision"] == "low" else _CLEARLY * tolerance_of(step, case)


def _where(step: Observation | None) -> str:
    return f"step {step['step'] + 1}, {step['tensor']}" if step else "the first step"


def _numbers(step: Observation) -> str:
    return (
        f"relative difference {step['difference']:.2g}, cosine {step['cosine']:.3f}, ratio of norms {step['ratio']:.3g}"
    )


def _worst(steps: Sequence[Observation]) -> str:
    return f"{max(step['difference'] or 0.0 for step in steps):.1e}"


def _count(steps: Sequence[Observation]) -> str:
    return f"{len(steps)} step{'' if len(steps) == 1 else 's'}"


def place(case: Case) -> dict[str, Any]:
    """Where the script takes the step, if that was seen."""
    seen = next((each["at"] for each in case.observed.of("step") if each["at"]), None)
    return {"file": seen[0], "line": seen[1]} if seen else {}
