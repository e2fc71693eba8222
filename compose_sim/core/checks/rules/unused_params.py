"""Does every parameter under DDP get a gradient?"""

from __future__ import annotations

import re

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.events.observations import Observation

QUESTION = "Does every parameter under DDP get a gradient?"

UNFINISHED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank (\d+): ((?:[\w.]+,? )*[\w.]+)")
_FIX = (
    "Let the loss use all of the model, or take out what it does not use (`requires_grad_(False)` before wrapping, where it is "
    "frozen). Where a part is rightly left out in some steps: `DistributedDataParallel(model, find_unused_parameters=True)`."
)


def judge(case: Case) -> Result:
    """Look for parameters that a whole backward pass left without a gradient, and for DDP's own complaint."""
    models = {(each.rank, each["ddp"]): each for each in case.observed.of("ddp")}
    if not models:
        return not_applicable("no model was wrapped in DistributedDataParallel")
    unused = list(case.observed.of("unused"))
    if unused:
        return _unused(unused)
    complaint = _complaint(case)
    if complaint and any("replaced" in model for step in case.observed.of("step") for model in step["models"] or ()):
        return not_applicable("DDP waits for parameters that the model no longer has: see params-after-wrap")
    if complaint:
        return _failed(_names(complaint, models), case)
    if not any(each["op"] == "DDP forward" for each in case.observed.of("collective")):
        return not_applicable("no DistributedDataParallel model was called to train")
    if all(each["find_unused"] or each["static_graph"] for each in models.values()):
        return passed("DistributedDataParallel looks for unused parameters itself")
    return passed("every parameter that DistributedDataParallel waits for got a gradient")


def _unused(found: list[Observation]) -> Result:
    first = found[0]
    ranks = tuple(sorted({each.rank for each in found}))
    names = ", ".join(first["names"][:5]) + (" …" if first["count"] > 5 else "")
    file, line = first["at"] or (None, None)
    who = f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))}"
    return failed(
        f"{first['count']} of the parameters that DistributedDataParallel waits for got no gradient from backward on {who}: {names}",
        fix=_FIX,
        file=file,
        line=line,
        ranks=ranks,
    )


def _complaint(case: Case) -> str:
    """What DDP said when it began a forward pass with a reduction that had never ended; nothing where it did not."""
    cause = case.cause or {}
    texts = [f"{cause.get('message') or ''}\n{cause.get('traceback') or ''}"]
    texts += ["\n".join(lines) for _, lines in sorted(case.logs.items())]
    return next((text for text in texts if UNFINISHED in text), "")


def _names(complaint: str, models: dict[tuple[int, int], Observation]) -> str:
    """The parameters it names, by name where it gives their places among those of the only model."""
    found = _INDICES.search(complaint)
    if not found:
        return ""
    words = found[2].replace(",", "").split()
    names = next(iter(models.values()))["names"] or []
    if len({index for _, index in models}) == 1 and all(word.isdigit() and int(word) < len(names) for word in words):
        words = [names[int(word)] for word in words]
    return ", ".join(words[:5]) + (" …" if len(words) > 5 else "")


def _failed(names: str, case: Case) -> Result:
    forwards = [each for each in case.observed.of("collective") if each["op"] == "DDP forward"]
    file, line = (forwards[-1]["at"] if forwards else None) or (None, None)
    what = f": {names}" if names else ""
    return failed(
        f"DistributedDataParallel waited for gradients of parameters that got none in the backward pass before{what}",
        fix=_FIX,
        file=file,
        line=line,
    )
