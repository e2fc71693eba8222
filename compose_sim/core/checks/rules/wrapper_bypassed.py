"""Is the model called through its DDP wrapper?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.replica_diff import Difference, compare
from compose_sim.core.events.observations import Observation

QUESTION = "Is the model called through its DDP wrapper?"

_FIX = (
    "Call the wrapper: `ddp_model(inputs)`, never `ddp_model.module(inputs)` or the model it was made of. Where the loss comes from "
    "another method, let forward call that method, so that the wrapper's forward runs before each backward."
)


def judge(case: Case) -> Result:
    """Look for steps with gradients that no call of the wrapper prepared, after which ranks differ."""
    if not any(case.observed.of("ddp")):
        return not_applicable("no model was wrapped in DistributedDataParallel")
    steps = [each for each in case.observed.of("step") if each["models"]]
    graded = [(step, model) for step in steps for model in step["models"] if model["graded"]]
    if not graded:
        return not_applicable("no optimizer stepped a DistributedDataParallel model")
    around = [(step, model) for step, model in graded if not model["forwards"]]
    beside = [(step, model) for step, model in graded if _is_beside(case, step, model)]
    different: dict[tuple[int, int], Difference] = {}
    for comparison in compare(case.observed):
        for each in comparison.different:
            if each.model is not None and each.nth:
                different.setdefault((comparison.optimizer, each.model), each)
    for step, model in [*around, *beside]:
        difference = different.get((step["optimizer"], model["ddp"]))
        if difference and difference.nth >= step["nth"]:
            return _failed(case, step, model["forwards"], model["graded"], difference)
    if around:
        return passed("gradients that the wrapper did not reduce are equal on all ranks all the same")
    return passed("every step that was looked at came after a call of the wrapper")


def _is_beside(case: Case, step: Observation, model: dict[str, int]) -> bool:
    """Whether a backward pass of its own went through the model but not through the wrapper, which was called as well."""
    alone = len(step["models"]) == 1 and not any(
        each["optimizer"] or each["ddp"] for each in case.observed.of("step", "ddp")
    )
    return alone and 0 < model["forwards"] < (step["backwards"] or 0) and not step["retained"]


def _failed(case: Case, step: Observation, forwards: int, graded: int, difference: Difference) -> Result:
    file, line = step["at"] or (None, None)
    if forwards:
        what = f"{step['backwards']} backward passes came after {forwards} call{'s'[: forwards > 1]} of the wrapper"
    else:
        what = f"the DistributedDataParallel wrapper was not called, though {graded} of its parameters had gradients"
    return failed(
        f"before step {step['nth']} {what}: nothing reduced them, and {difference} differs ({difference.who})",
        fix=_FIX,
        file=file,
        line=line,
        ranks=tuple(rank.rank for rank in case.observed),
    )
