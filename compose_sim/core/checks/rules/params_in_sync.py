"""Are parameters, buffers and optimizer state equal on all ranks?"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.replica_diff import Difference, compare, models_at, shapes_exchanged, step_at
from compose_sim.core.checks.rules.unused_params import UNFINISHED

QUESTION = "Are parameters, buffers and optimizer state equal on all ranks?"

_FEW = 64  # numbers: a metric, not a part of a model
_WRAP = "Wrap the model that all ranks train together: `model = DistributedDataParallel(model)`, before the optimizer is made."


def judge(case: Case) -> Result:
    """Compare what ranks held at the same steps."""
    observed = case.observed
    if observed.world_size < 2:
        return not_applicable("there is one rank only")
    if not any(observed.of("step")):
        return not_applicable("no optimizer stepped")
    comparisons = [each for each in compare(observed) if len(each.ranks) > 1]
    if not comparisons:
        return not_applicable("only one rank steps each optimizer")
    if any(each.sharded for each in comparisons):
        return not_applicable("parameters are sharded: each rank holds a part of its own")
    has_models = any(observed.of("ddp"))
    reasons = []
    for comparison in comparisons:
        if comparison.excused:
            reasons.append(f"{comparison.excused[0]} differs, but ranks exchange all parameters by themselves")
        for found in comparison.different:
            reason = _why_not(case, found, has_models)
            if not reason:
                return _failed(case, found, has_models)
            reasons.append(reason)
    if reasons:
        return not_applicable(reasons[0])
    if not any(each.samples for each in comparisons):
        return not_applicable("no step was compared: ranks ended too early, or have nothing in common")
    averaged = [name for each in comparisons for name in each.again_equal]
    tensors = sum(each.tensors for each in comparisons)
    if averaged:
        return passed(
            f"{tensors} tensors are equal on all ranks from time to time, as where ranks average now and then"
        )
    samples = sum(each.samples for each in comparisons)
    return passed(f"{tensors} tensors were equal on all ranks after each of {samples} steps that were looked at")


def _why_not(case: Case, found: Difference, has_models: bool) -> str:
    """Why this difference may be meant so; nothing where it cannot be."""
    if found.model is not None:
        stuck = case.verdict != "passed" and (any(case.observed.of("unused")) or UNFINISHED in _cause(case))
        return f"{found} differs, since DistributedDataParallel could not finish its reduction" if stuck else ""
    if any("send" in str(each["how"]) or "recv" in str(each["how"]) for each in case.observed.of("loose")):
        return f"{found} differs, but ranks send each other messages: they may hold different parts"
    steps = max(sum(1 for _ in rank.of("step")) for rank in case.observed)
    large = [sum(prod(shape) > _FEW for shape in shapes_exchanged(rank)) for rank in case.observed]
    if any(2 * count >= steps for count in large):
        return f"{found} differs, but ranks exchange tensors in every step: they may hold different parts"
    if has_models:
        return "" if found.nth else f"{found} is outside of DistributedDataParallel, and differed from the start"
    if not all(any(rank.of("group")) for rank in case.observed):
        return "there is no process group: each rank trains by itself"
    if found.nth == 0 and not _shares_data(case):
        return "each rank trains a model of its own, which differed from the start"
    return ""


def _cause(case: Case) -> str:
    cause = case.cause or {}
    return f"{cause.get('message')} {cause.get('traceback')}"


def _shares_data(case: Case) -> bool:
    """Whether the data set is divided between ranks."""
    return any("DistributedSampler" in str(each.data) for each in case.observed.of("loader"))


def _failed(case: Case, found: Difference, has_models: bool) -> Result:
    step = step_at(case.observed, found)
    when = f"after step {found.nth}" if found.nth else "before the first step"
    why, fix = _explain(found, models_at(step).get(-1 if found.model is None else found.model, {}), step, has_models)
    file, line = (step["at"] if step is not None else None) or (None, None)
    return failed(
        f"{when} {found} differs between ranks ({found.who}): {why}",
        fix=fix,
        file=file,
        line=line,
        ranks=tuple(rank for ranks in found.agreeing for rank in ranks),
    )


def _explain(found: Difference, seen: Mapping[str, Any], step: Any, has_models: bool) -> tuple[str, str]:
    """(why, what to change), as far as the step tells."""
    if not has_models:
        return "no DistributedDataParallel, so each rank trains a model of its own", _WRAP
    if found.model is None:
        return (
            "it is outside of the DistributedDataParallel model, so its gradient is not reduced",
            "Make it part of the module that DistributedDataParallel wraps, or wrap it by itself.",
        )
    if found.kind == "buffer":
        return (
            "broadcast_buffers=False leaves each rank its own",
            "Leave out `broadcast_buffers=False`, or reduce what goes into the buffer over the ranks (`dist.all_reduce`).",
        )
    if found.nth == 0:
        return (
            "it was set on some ranks only, after DistributedDataParallel had made all equal",
            "Set and load weights before wrapping, on every rank alike, and leave out `init_sync=False`.",
        )
    if any(found.name in (seen.get(how) or ()) for how in ("new", "replaced", "unfrozen")):
        return (
            "it came to the model after DistributedDataParallel had wrapped it",
            "Build, replace, freeze and unfreeze before wrapping, or wrap again after it.",
        )
    if seen.get("graded") and not seen.get("forwards"):
        return (
            "the model was called around its wrapper",
            "Call the DistributedDataParallel wrapper, not the model inside it.",
        )
    if seen.get("forwards") and not seen.get("reduced"):
        return (
            "every forward pass before it ran in no_sync(), so nothing was reduced",
            "Leave no_sync() for the last micro-batch before each step: forward and backward of that one belong outside of it.",
        )
    if seen and (step["backwards"] or 0) > seen.get("forwards", 0):
        return (
            f"{step['backwards']} backward passes followed {seen['forwards']} forward passes, and only one of each is reduced",
            "Add the losses up and call backward once for each forward pass.",
        )
    return (
        "ranks treat it differently after DistributedDataParallel has reduced its gradient, or it reduces nothing of it",
        "Do the same on every rank between backward and the next step: learning rate, clipping, every change of a gradient or weight.",
    )
