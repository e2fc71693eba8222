"""Judge whether the model is called through the DDP wrapper."""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.replica_diff import Difference, compare
from compose_sim.core.units import format_count
from compose_sim.node.records.models import DdpModel, OptimizerStep, SteppedModel

QUESTION = "Is the model called through its DDP wrapper?"

_FIX = (
    "Call the wrapper: `ddp_model(inputs)`, not `ddp_model.module(inputs)` or the model inside it. If the loss comes from another "
    "method, let forward call that method, so that the wrapper's forward runs before each backward."
)


def judge(case: Case) -> Result:
    """Look for steps with gradients for which the wrapper was not called, and after which ranks differ."""
    if not case.observed.first(DdpModel):
        return not_applicable("no model was wrapped in DistributedDataParallel")
    steps = case.observed.of(OptimizerStep)
    graded = [(step, model) for step in steps for model in step.models if model.graded]
    if not graded:
        return not_applicable("no optimizer stepped a DistributedDataParallel model")
    around = [(step, model) for step, model in graded if not model.forwards]
    beside = [(step, model) for step, model in graded if _is_beside(case, step, model)]
    different: dict[tuple[int, int], Difference] = {}
    for comparison in compare(case.observed):
        for each in comparison.different:
            if each.model is not None and each.nth:
                different.setdefault((comparison.optimizer, each.model), each)
    for step, model in [*around, *beside]:
        difference = different.get((step.optimizer, model.ddp))
        if difference and difference.nth >= step.nth:
            return _failed(case, step, model, difference)
    if around:
        return passed("gradients that the wrapper did not reduce are nevertheless equal on all ranks")
    return passed("the wrapper was called before every sampled step")


def _is_beside(case: Case, step: OptimizerStep, model: SteppedModel) -> bool:
    """Return whether a separate backward pass went through the model but not the wrapper, which was also called."""
    alone = len(step.models) == 1 and not (
        len({each.optimizer for each in case.observed.of(OptimizerStep)}) > 1
        or any(each.ddp for each in case.observed.of(DdpModel))
    )
    return alone and 0 < model.forwards < step.backwards and not step.retained


def _failed(case: Case, step: OptimizerStep, model: SteppedModel, difference: Difference) -> Result:
    if model.forwards:
        what = f"{step.backwards} backward passes followed {format_count(model.forwards, 'call')} of the wrapper"
    else:
        what = f"the DistributedDataParallel wrapper was not called, but {model.graded} of its parameters had gradients"
    return failed(
        f"before step {step.nth} {what}: nothing reduced them, and {difference} differs ({difference.who})",
        fix=_FIX,
        at=step.at,
        ranks=sorted(case.observed.ranks),
    )
