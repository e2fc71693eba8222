"""Judge whether parameters, buffers and optimizer state are equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.copies_and_experts import left_behind, not_sharded, overwritten_experts, untied
from compose_sim.core.checks.evidence.gradient_sums import holds_copies, optimizers
from compose_sim.core.checks.evidence.replica_causes import (
    FIX_TOGETHER,
    begun_with_state,
    by_model,
    left_out,
    never_stepped,
)
from compose_sim.core.checks.evidence.replica_diff import (
    EXCHANGED,
    Difference,
    compare,
    exchanges_parts,
    has_uneven_join,
    maybe_parts,
    model_at,
    step_at,
)
from compose_sim.core.checks.rules.unused_params import UNFINISHED
from compose_sim.core.units import format_count
from compose_sim.node.records.data import LoaderInfo
from compose_sim.node.records.models import DdpModel, OptimizerStep, SteppedModel, UnusedParameters
from compose_sim.node.records.process_groups import ProcessGroup, UntrackedWait

QUESTION = "Are parameters, buffers and optimizer state equal on all ranks?"


def judge(case: Case) -> Result:
    """Compare what ranks held at the same steps."""
    observed = case.observed
    if observed.world_size < 2:
        return not_applicable("there is only one rank")
    if not observed.first(OptimizerStep):
        return not_applicable("no optimizer stepped")
    return never_stepped(case) or overwritten_experts(case) or _compared(case, left_behind(case) or untied(case))


def _compared(case: Case, copy: Result | None) -> Result:
    """Return the first difference between replicas, or else what is wrong with a copy of them."""
    observed = case.observed
    comparisons = [each for each in compare(observed) if len(each.ranks) > 1]
    if not comparisons:
        return not_applicable("each optimizer is stepped by only one rank")
    stale = [each.index for each in optimizers(observed) if holds_copies(each)]
    comparisons = [each for each in comparisons if each.optimizer not in stale]
    if not comparisons:
        return not_applicable("the optimizer holds parameters that no model uses any more", judged_by="gradient-mean")
    if any(each.sharded for each in comparisons):
        different = [found for each in comparisons for found in _without_consequences(each.different) if found.nth]
        beside = [found for found in different if not _why_not(case, found, has_models=False)]
        return not_sharded(case, beside) or not_applicable(
            "parameters are sharded: each rank holds a different part", judged_by="matches-single"
        )
    has_models = observed.first(DdpModel) is not None
    reasons = []
    for comparison in comparisons:
        for found in _without_consequences(comparison.excused):
            if _train_together(case, found):
                return _failed(case, found, has_models)
        if comparison.excused:
            reasons.append(f"{comparison.excused[0]} differs, but {EXCHANGED}")
        for found in _without_consequences(comparison.different):
            reason = _why_not(case, found, has_models)
            if not reason:
                return _failed(case, found, has_models)
            reasons.append(reason)
    problem = left_out(case) or copy
    if problem:
        return problem
    if reasons:
        return not_applicable(reasons[0])
    if not any(each.samples for each in comparisons):
        return not_applicable("no step was compared: the ranks ended too early, or have no tensor in common")
    tensors = format_count(sum(each.tensors for each in comparisons), "tensor")
    if any(each.again_equal for each in comparisons):
        return passed(f"{tensors} compared: equal on all ranks now and then, as if ranks average them periodically")
    samples = sum(each.samples for each in comparisons)
    return passed(f"{tensors} compared: equal on all ranks after each of {samples} sampled steps")


def _without_consequences(different: Sequence[Difference]) -> list[Difference]:
    """Leave out the optimizer state of parameters that differ: it follows from them."""
    since = {(each.model, each.name): each.nth for each in different if each.kind == "parameter"}
    return [
        each for each in different if since.get((each.model, each.name.rpartition(": ")[0]), each.nth + 1) > each.nth
    ]


def _why_not(case: Case, found: Difference, has_models: bool) -> str:
    """Return why this difference may be intentional; "" if it cannot be."""
    if found.model is not None:
        stuck = case.verdict != "passed" and (case.observed.first(UnusedParameters) or UNFINISHED in case.evidence)
        return f"{found} differs because DistributedDataParallel could not finish its reduction" if stuck else ""
    if _train_together(case, found):
        return ""
    if any("send" in each.how or "recv" in each.how for each in case.observed.of(UntrackedWait)):
        return f"{found} differs, but ranks send each other messages: {maybe_parts(found)}"
    if exchanges_parts(case.observed):
        return f"{found} differs, but ranks exchange tensors in every step: {maybe_parts(found)}"
    if has_models:
        return "" if found.nth else f"{found} is outside DistributedDataParallel, and differed from the start"
    if not all(rank.first(ProcessGroup) for rank in case.observed):
        return "there is no process group: each rank trains by itself"
    if found.nth == 0 and not _shares_data(case):
        return "each rank trains its own model, which differed from the start"
    if found.nth == 0 and found.kind == "parameter" and _reduced_beside(case, found):
        return f"{found} differed from the start, and its gradient is not reduced, unlike those of others"
    return ""


def _train_together(case: Case, found: Difference) -> bool:
    """
    Return whether ranks that differ reduce the gradient of this parameter, and must therefore hold the same value.

    Local SGD may begin with reduced gradients too. Then ranks differ later, and no gradient is reduced any more.
    """
    name = found.name if found.kind == "parameter" else found.name.rpartition(": ")[0]
    reduced = [
        each.nth
        for optimizer in optimizers(case.observed)
        for each in optimizer.reductions
        if optimizer.index == found.optimizer
        and (found.model, name) in {(optimizer.rows[row].model, optimizer.rows[row].name) for row in each.rows}
        and sum(bool(set(each.ranks) & set(group)) for group in found.agreeing) > 1
    ]
    return bool(reduced) and (max(reduced) > found.nth or len(set(_step_counts(case, found).values())) > 1)


def _step_counts(case: Case, found: Difference) -> dict[int, int]:
    """Return how many steps each rank made with the optimizer."""
    return {
        rank.rank: sum(each.optimizer == found.optimizer for each in rank.of(OptimizerStep)) for rank in case.observed
    }


def _shares_data(case: Case) -> bool:
    """Return whether the data set is divided between ranks."""
    samplers = (name for each in case.observed.of(LoaderInfo) for name in each.samplers)
    return any("DistributedSampler" in name for name in samplers)


def _failed(case: Case, found: Difference, has_models: bool) -> Result:
    step = step_at(case.observed, found)
    when = f"after step {found.nth}" if found.nth else "before the first step"
    together = _train_together(case, found)
    by_steps = _explain_by_steps(case, found) if found.nth and (has_models or together) else None
    why, fix = (
        by_steps
        or begun_with_state(case.observed, found)
        or _left_out(case, found)
        or _explain(found, model_at(step, found.model), step, has_models, together=together)
    )
    return failed(
        f"{when} {found} differs between ranks ({found.who}): {why}",
        fix=fix,
        at=step.at if step else None,
        ranks=[rank for ranks in found.agreeing for rank in ranks],
    )


def _left_out(case: Case, found: Difference) -> tuple[str, str] | None:
    """Return why ranks differ in this parameter if they reduce the gradients of others by hand."""
    if found.model is not None or found.kind != "parameter" or not found.nth or _train_together(case, found):
        return None
    beside = _reduced_beside(case, found)
    if not beside:
        return None
    return (
        f"its gradient is not reduced, unlike those of {format_count(beside, 'other parameter')} of the optimizer",
        "Reduce the gradients of all parameters that ranks share, or start those that each rank keeps with values of its own.",
    )


def _reduced_beside(case: Case, found: Difference) -> int:
    """Return how many parameters of the same optimizer ranks reduce by hand."""
    own = [each for each in optimizers(case.observed) if each.index == found.optimizer]
    return len({row for each in own for reduction in each.reductions for row in reduction.rows})


def _explain(
    found: Difference,
    model: SteppedModel | None,
    step: OptimizerStep | None,
    has_models: bool,
    *,
    together: bool,
) -> tuple[str, str]:
    """Return why the tensor differs and what to change, as far as the step shows."""
    if not has_models and together:
        copies = [ranks for ranks in found.agreeing if len(ranks) > 1]
        if found.nth == 0 and len(copies) == len(found.agreeing) > 1:
            return (
                "each of these sets of ranks holds copies of one tensor, but its gradient is reduced by ranks of different sets",
                f"Reduce over the ranks that hold the same part: {' and '.join(f'dist.new_group({[*each]})' for each in copies)}. "
                "If all ranks should hold the same, begin with the same weights.",
            )
        if found.nth == 0:
            return (
                "ranks reduce its gradient, but began with different values",
                "Begin with the same weights: `for p in model.parameters(): dist.broadcast(p.data, 0)`, before the first step.",
            )
        return (
            "ranks change it differently after its gradient was reduced, or do not reduce it at every step",
            "Do the same on every rank after the reduction: clipping, a GradScaler's scale, every change of a gradient or weight.",
        )
    if not has_models:
        return (
            "there is no DistributedDataParallel, so each rank trains its own model",
            "Wrap the model that all ranks train together, before making the optimizer: `model = DistributedDataParallel(model)`.",
        )
    if found.model is None:
        return (
            "it is outside the DistributedDataParallel model, so its gradient is not reduced",
            "Make it part of the module that DistributedDataParallel wraps, or wrap it separately.",
        )
    if found.kind == "buffer":
        return (
            "with broadcast_buffers=False each rank keeps its own",
            "Remove `broadcast_buffers=False`, or reduce what goes into the buffer over the ranks (`dist.all_reduce`).",
        )
    if found.nth == 0:
        return (
            "it was set on some ranks only, after DistributedDataParallel had made all ranks equal",
            "Set and load weights before wrapping, the same on every rank, and remove `init_sync=False`.",
        )
    return by_model(found, model, step.backwards if step else 0)


def _explain_by_steps(case: Case, found: Difference) -> tuple[str, str] | None:
    """Return why ranks differ if they made different numbers of steps, or steps with different learning rates."""
    counts = _step_counts(case, found)
    if case.verdict == "passed" and len(set(counts.values())) > 1 and not has_uneven_join(case.observed):
        listed = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(counts.items()))
        return (
            f"ranks made different numbers of steps ({listed})",
            FIX_TOGETHER,
        )
    rates: dict[int, dict[int, tuple[float, ...]]] = {}
    for each in case.observed.of(OptimizerStep):
        if each.optimizer == found.optimizer and each.nth <= found.nth and each.rates:
            rates.setdefault(each.nth, {})[each.rank] = each.rates
    for nth, by_rank in sorted(rates.items()):
        if len(set(by_rank.values())) > 1:
            listed = ", ".join(
                f"rank {rank}: {rate[0]:.4g}" for rank, rate in sorted(_where_different(by_rank).items())
            )
            return (
                f"ranks have different learning rates in step {nth} ({listed})",
                "Compute the learning rate on every rank from the same numbers: reduce the loss before a scheduler sees it, and take "
                "no length of a rank's own data.",
            )
    return None


def _where_different(rates: Mapping[int, tuple[float, ...]]) -> dict[int, tuple[float, ...]]:
    """Return the rates of the first group of parameters in which ranks differ, and of those after it."""
    first = next(index for index, each in enumerate(zip(*rates.values(), strict=False)) if len(set(each)) > 1)
    return {rank: each[first:] for rank, each in rates.items()}
