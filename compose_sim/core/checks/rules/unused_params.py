"""Judge whether every parameter under DDP gets a gradient."""

from __future__ import annotations

import re
from dataclasses import replace

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.rules.gradient_mean import FIX_GATHER
from compose_sim.core.checks.wording import names_text, ranks_text
from compose_sim.node.records.models import DdpModel, OptimizerStep, UnusedParameters
from compose_sim.node.records.process_groups import Collective, DdpForward

QUESTION = "Does every parameter under DDP get a gradient?"

UNFINISHED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank (\d+): ((?:[\w.]+,? )*[\w.]+)")
_FIX = (
    "Use all of the model in the loss, or freeze what it does not use (`requires_grad_(False)` before wrapping). If a part is "
    "intentionally left out in some steps: `DistributedDataParallel(model, find_unused_parameters=True)`."
)


def judge(case: Case) -> Result:
    """Look for parameters that a whole backward pass left without a gradient, and for DDP's own error."""
    models = {(each.rank, each.ddp): each for each in case.observed.of(DdpModel)}
    if not models:
        return not_applicable("no model was wrapped in DistributedDataParallel")
    unused = list(case.observed.of(UnusedParameters))
    if unused:
        return _explained(_unused(unused), case)
    complaint = _complaint(case)
    if complaint and any(model.replaced for step in case.observed.of(OptimizerStep) for model in step.models):
        return not_applicable("DDP waits for parameters that the model no longer has: see params-after-wrap")
    if complaint:
        return _explained(_failed(_names(complaint, models), case), case)
    if not case.observed.first(DdpForward):
        return not_applicable("no DistributedDataParallel model was called to train")
    if all(each.find_unused or each.static_graph for each in models.values()):
        return passed("DistributedDataParallel looks for unused parameters itself")
    return passed("every parameter that DistributedDataParallel waits for got a gradient")


def _unused(found: list[UnusedParameters]) -> Result:
    first = found[0]
    ranks = sorted({each.rank for each in found})
    return failed(
        f"{first.count} of the parameters that DistributedDataParallel waits for got no gradient from backward on "
        f"{ranks_text(ranks)}: {names_text(first.names, first.count)}",
        fix=_FIX,
        at=first.at,
        ranks=ranks,
    )


def _explained(result: Result, case: Case) -> Result:
    """Name the gather that returns no gradient, if there is one: what only it uses has none."""
    gathered = next((each for each in case.observed.of(Collective) if each.detaches), None)
    if gathered is None:
        return result
    detail = f"{result.detail}; {gathered.op} is given a tensor that requires a gradient, and returns one that has none"
    return replace(result, detail=detail, fix=FIX_GATHER, at=gathered.at or result.at)


def _complaint(case: Case) -> str:
    """Return DDP's error when it starts a forward pass while a reduction has not ended; "" if there was none."""
    texts = [case.evidence, *("\n".join(lines) for _, lines in sorted(case.logs.items()))]
    return next((text for text in texts if UNFINISHED in text), "")


def _names(complaint: str, models: dict[tuple[int, int], DdpModel]) -> str:
    """Return the parameters that the error lists; indices become names if there is only one model."""
    found = _INDICES.search(complaint)
    if not found:
        return ""
    listed = found[2].replace(",", "").split()
    names = next(iter(models.values())).names
    if len({index for _, index in models}) == 1 and all(each.isdecimal() and int(each) < len(names) for each in listed):
        listed = [names[int(each)] for each in listed]
    return names_text(listed)


def _failed(names: str, case: Case) -> Result:
    forward = case.observed.last(DdpForward)
    return failed(
        "DistributedDataParallel waited for gradients of parameters that got none in the previous backward pass"
        f"{f': {names}' if names else ''}",
        fix=_FIX,
        at=forward.at if forward else None,
    )
