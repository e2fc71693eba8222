"""Are the parameters those that DDP wrapped?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.replica_diff import compare
from compose_sim.core.events.observations import Observation

QUESTION = "Are the parameters those that DDP wrapped?"

_FIX = (
    "Build, replace, freeze and unfreeze first, and wrap then: `model = DistributedDataParallel(model)` as the last step before the "
    "optimizer. After a later change wrap the inner model again (`DistributedDataParallel(model.module)`)."
)
_WHAT = {"new": "added", "replaced": "replaced", "unfrozen": "unfrozen"}


def judge(case: Case) -> Result:
    """Look for parameters that are trained under a DDP model but were not, or not as such, in it when it was made."""
    if not any(case.observed.of("ddp")):
        return not_applicable("no model was wrapped in DistributedDataParallel")
    steps = [each for each in case.observed.of("step") if each["models"]]
    if not steps:
        return not_applicable("no optimizer stepped a DistributedDataParallel model")
    found = [(step, model, how) for step in steps for model in step["models"] for how in _WHAT if model.get(how)]
    if not found:
        return passed("all parameters that were trained are those that DistributedDataParallel wrapped")
    different = {(each.model, each.name) for comparison in compare(case.observed) for each in comparison.different}
    for step, model, how in found:
        names = [name for name in model[how] if (model["ddp"], name) in different]
        if names:
            return _failed(case, step, model["ddp"], how, names, f"and {names[0]} differs between ranks")
    if case.verdict != "passed":
        step, model, how = next((each for each in found if each[2] == "replaced"), found[0])
        if how == "replaced":
            return _failed(
                case, step, model["ddp"], how, model[how], "and DistributedDataParallel waits for the old ones"
            )
        return not_applicable(
            "parameters were changed after wrapping, but the run ended before ranks could be compared"
        )
    if not any(comparison.samples for comparison in compare(case.observed)):
        return not_applicable("parameters were changed after wrapping, but there is no later step to compare ranks by")
    return passed("parameters were changed after wrapping, and are equal on all ranks all the same")


def _failed(case: Case, step: Observation, index: int, how: str, names: list[str], so: str) -> Result:
    file, line = step["at"] or (None, None)
    wrapped = next(
        (each["at"] for each in case.observed.of("ddp") if each["ddp"] == index and each.rank == step.rank), None
    )
    where = f" ({wrapped[0].rpartition('/')[2]}, line {wrapped[1]})" if wrapped else ""
    listed = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    were = "were" if len(names) > 1 else "was"
    return failed(
        f"{listed} {were} {_WHAT[how]} after DistributedDataParallel wrapped the model{where}: nothing reduces "
        f"{'their gradients' if len(names) > 1 else 'its gradient'}, {so}",
        fix=_FIX,
        file=file,
        line=line,
        ranks=tuple(rank.rank for rank in case.observed),
    )
