"""Judge whether the trained parameters are those that DistributedDataParallel wrapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.replica_diff import compare
from compose_sim.core.checks.wording import names_text, where
from compose_sim.node.records.models import DdpModel, OptimizerStep, SteppedModel
from compose_sim.node.records.replays import RecordedModels

QUESTION = "Are the parameters those that DDP wrapped?"

_FIX = (
    "Build, replace, freeze and unfreeze first, then wrap: `model = DistributedDataParallel(model)` as the last step before the "
    "optimizer. After a later change, wrap the inner model again (`DistributedDataParallel(model.module)`)."
)
_FIX_LEFT_OUT = "Build the optimizer last: replace layers and wrap the model first, then give `model.parameters()` to the optimizer."
_LEAST = 3  # steps
Change = tuple[
    OptimizerStep, SteppedModel, str, Sequence[str]
]  # how parameters came to be in the model, and their names


def judge(case: Case) -> Result:
    """Look for parameters that are trained under a DDP model but were not in the model, or not as such, when it was wrapped."""
    if not case.observed.first(DdpModel):
        return not_applicable("no model was wrapped in DistributedDataParallel")
    if not any(step.models for step in case.observed.of(OptimizerStep)):
        return not_applicable("no optimizer stepped a DistributedDataParallel model")
    changes = list(_changes(case))
    left_out = _left_out(case)
    if left_out:
        return left_out
    if not changes and any(each.ranks and not each.covered for each in case.observed.of(RecordedModels)):
        return not_applicable("the optimizer trains parameters that are in no DistributedDataParallel model")
    if not changes:
        return passed("all trained parameters are those that DistributedDataParallel wrapped")
    comparisons = compare(case.observed)
    different = {(each.model, each.name) for comparison in comparisons for each in comparison.different}
    for step, model, how, names in changes:
        differing = [name for name in names if (model.ddp, name) in different]
        if differing:
            return _failed(case, (step, model, how, differing), f"and {differing[0]} differs between ranks")
    if case.verdict != "passed":
        replaced = next((each for each in changes if each[2] == "replaced"), None)
        if replaced:
            return _failed(case, replaced, "and DistributedDataParallel waits for the old ones")
        return not_applicable("parameters changed after wrapping, but the run ended before ranks could be compared")
    if not any(comparison.samples for comparison in comparisons):
        return not_applicable("parameters changed after wrapping, but there is no later step at which to compare ranks")
    return passed("parameters changed after wrapping, but are equal on all ranks")


def _left_out(case: Case) -> Result | None:
    """Find parameters that an optimizer was not given because it was built before they took the place of others."""
    sampled: dict[int, list[OptimizerStep]] = {}
    for step in case.observed.ranks[0].of(OptimizerStep):
        if step.models:
            sampled.setdefault(step.optimizer, []).append(step)
    for steps in sampled.values():
        names = steps[-1].left_out
        if names and len(steps) >= _LEAST and all(step.left_out == names for step in steps):
            return failed(
                f"no optimizer holds {names_text(names)}, with gradients before each of {len(steps)} steps, and {steps[-1].type} "
                "holds as many parameters that no module has any longer: it was built before a layer was replaced",
                fix=_FIX_LEFT_OUT,
                at=steps[-1].at,
            )
    return None


def _changes(case: Case) -> Iterator[Change]:
    for step in case.observed.of(OptimizerStep):
        for model in step.models:
            for how, names in (("added", model.new), ("replaced", model.replaced), ("unfrozen", model.unfrozen)):
                if names:
                    yield step, model, how, names


def _failed(case: Case, change: Change, consequence: str) -> Result:
    step, model, how, names = change
    wrapped = (each.at for each in case.observed.of(DdpModel) if (each.rank, each.ddp) == (step.rank, model.ddp))
    were, gradients = ("were", "their gradients") if len(names) > 1 else ("was", "its gradient")
    return failed(
        f"{names_text(names)} {were} {how} after DistributedDataParallel wrapped the model{where(next(wrapped, None))}: "
        f"nothing reduces {gradients}, {consequence}",
        fix=_FIX,
        at=step.at,
        ranks=sorted(case.observed.ranks),
    )
