"""Judge whether parameters, buffers and optimizer state are equal on all ranks, and explain why they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite

from compose_sim.core.checks import (
    OPTIMIZER_STEPS,
    SEVERAL_RANKS,
    Case,
    Result,
    check,
    failed,
    not_applicable,
    passed,
    ranks_text,
    where,
)
from compose_sim.core.checks.drifting_copies import begun_apart
from compose_sim.core.checks.replica_diff import (
    EXCHANGED,
    Comparison,
    Difference,
    compare,
    exchanges_parts,
    exchanges_some_weights,
    has_uneven_join,
    maybe_parts,
    model_at,
    states_at_start,
    step_at,
)
from compose_sim.core.checks.rules.copies import copies_apart, copies_lost, helper_apart, not_sharded
from compose_sim.core.checks.rules.exchanges import (
    exchanges,
    in_parts,
    islands,
    joined_apart,
    never_equal,
    of_nothing,
    overwritten,
    saved_apart,
    undone,
)
from compose_sim.core.checks.rules.updates import (
    begun_outside,
    differs,
    is_outside,
    other_attributes,
    other_constants,
    parted,
    shares_data,
    skipped_alone,
)
from compose_sim.core.checks.rules.wrapping import UNFINISHED, divided_apart, never_stepped, unlike_gradients
from compose_sim.core.checks.sketches import Optimizer, Ranks, alike, holds_copies, joined, optimizers
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.text import format_count
from compose_sim.node.records.models import BY_HAND, DdpModel, OptimizerStep, SteppedModel, UnusedParameters
from compose_sim.node.records.process_groups import Collective, DdpForward, ProcessGroup, UntrackedWait

_WHY_KEPT = ": they average weights now and then, but not all of them"
_FIX_KEPT = "Average all parameters, unless each rank keeps some on purpose, as personal layers in federated learning."


@check(
    "params-in-sync",
    "Are parameters, buffers and optimizer state equal on all ranks?",
    SEVERAL_RANKS,
    OPTIMIZER_STEPS,
    may_follow=(
        "wrapper-bypassed",
        "params-after-wrap",
        "collective-mismatch",
        "unused-params",
        "uneven-inputs",
        "gradient-mean",
        "gradient-clipping",
    ),
)
def params_in_sync(case: Case) -> Result:
    """Compare what ranks held at the same steps."""
    return (
        never_stepped(case)
        or unlike_gradients(case)
        or divided_apart(case)
        or copies_lost(case)
        or undone(case)
        or _compared(case, copies_apart(case) or skipped_alone(case))
    )


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
    averages = any(each.again_equal or each.excused for each in comparisons)
    reasons: list[str] = []
    kept: Difference | None = None  # by each rank, while others are averaged
    after_join: Difference | None = None
    outside: Difference | None = None  # of DistributedDataParallel
    for comparison in comparisons:
        for found in _without_consequences(comparison.excused):
            if _train_together(case, found):
                return _failed(case, found, has_models)
        if comparison.excused:
            if nothing := of_nothing(case, comparison.ranks):
                return _exchanged_nothing(case, comparison.excused[0], nothing)
            reasons.append(f"{comparison.excused[0]} differs, but {EXCHANGED}")
        after_join = after_join or comparison.after_join
        for found in _without_consequences(comparison.different):
            reason = _why_not(case, found, has_models)
            if not reason and averages and found.model is None and not _train_together(case, found):
                kept = kept or found
            elif not reason:
                return _failed(case, found, has_models)
            outside = outside or (found if is_outside(case, found, has_models) else None)
            reasons.append(reason)
    problem = (
        left_out(case)
        or overwritten(case)
        or (differs(case, kept, _WHY_KEPT, fix=_FIX_KEPT) if kept else None)
        or (joined_apart(case, after_join) if after_join else None)
        or (begun_outside(case, outside) if outside else None)
        or copy
        or other_constants(case)
        or other_attributes(case)
        or (saved_apart(case) if averages else helper_apart(case))
    )
    if problem:
        return problem
    if reasons:
        never = never_equal(case) if any(each.excused for each in comparisons) else None
        return never or parted(case) or islands(case) or not_applicable(reasons[0])
    if not any(each.samples for each in comparisons):
        return not_applicable("no step was compared: the ranks ended too early, or have no tensor in common")
    return passed(_equal_text(case, comparisons))


def _exchanged_nothing(case: Case, found: Difference, exchange: Collective) -> Result:
    return differs(
        case,
        found,
        f", and they exchange only zeros, first in {exchange.op}{where(exchange.at)}: nothing makes the weights equal again",
        fix="If the zeros are a difference to earlier weights, keep a copy of those: `p.detach().clone()`. Only detached, they share "
        "the memory of the weights and change with them.",
        at=exchange.at,
        is_certain=True,
    )


def _equal_text(case: Case, comparisons: Sequence[Comparison]) -> str:
    """Return of how many tensors at how many steps the ranks' values were equal, and when they were not."""
    compared, held = (sum(getattr(each, name) for each in comparisons) for name in ("tensors", "held"))
    tensors = f"{compared} of {format_count(held, 'tensor')} compared"
    if any(each.again_equal for each in comparisons):
        return f"{tensors}: equal on all ranks now and then, as if ranks average them periodically"
    samples = sum(each.samples for each in comparisons)
    apart = sum(len({found.step.nth for found in exchanges(each)}) for each in optimizers(case.observed))
    if apart:
        return f"{tensors}: apart after {format_count(apart, 'step')}, but exchanged before the next, and then equal on all ranks"
    return f"{tensors}: equal on all ranks after each of {samples} sampled steps"


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
    if exchanges_parts(case.observed, began_equal=found.nth > 0):
        return f"{found} differs, but ranks exchange tensors in every step: {maybe_parts(found)}"
    if not has_models and found.nth and exchanges_some_weights(case.observed, found.optimizer):
        return f"{found} differs, but ranks exchange some of the weights now and then, and may keep others"
    if has_models:
        return "" if found.nth else f"{found} is outside DistributedDataParallel, and differed from the start"
    if not all(rank.first(ProcessGroup) for rank in case.observed):
        return "there is no process group: each rank trains by itself"
    if (found.nth == 0 or begun_apart(case.observed, found.optimizer)) and not shares_data(case):
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


def _failed(case: Case, found: Difference, has_models: bool) -> Result:
    step = step_at(case.observed, found)
    together = _train_together(case, found)
    by_steps = _explain_by_steps(case, found) if found.nth and (has_models or together) else None
    why, fix = (
        by_steps
        or begun_with_state(case.observed, found)
        or _not_reduced(case, found)
        or (None if has_models or together else in_parts(case.observed))
        or _explain(found, model_at(step, found.model), step, has_models, together=together)
    )
    may_be_unused = found.kind == "buffer" and found.nth == 0  # such as noise that only some calls of the model take
    return differs(case, found, f": {why}", fix=fix, is_certain=not may_be_unused)


def _not_reduced(case: Case, found: Difference) -> tuple[str, str] | None:
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
                "If each rank has its own, such as its experts, leave its gradient out of the reduction. Otherwise begin with the same "
                "weights: `for p in model.parameters(): dist.broadcast(p.data, 0)`, before the first step.",
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
    # An update by hand is noticed after the first backward pass, which is then not counted.
    is_first = step is not None and step.type == BY_HAND and step.nth == 1
    return by_model(found, model, 1 if is_first else step.backwards if step else 0)


def _explain_by_steps(case: Case, found: Difference) -> tuple[str, str] | None:
    """Return why ranks differ if they made different numbers of steps, or steps with different learning rates."""
    counts = _step_counts(case, found)
    if case.verdict == "passed" and len(set(counts.values())) > 1 and not has_uneven_join(case.observed):
        listed = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(counts.items()))
        return f"ranks made different numbers of steps ({listed})", FIX_TOGETHER
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


FIX_TOGETHER = (
    "Step on every rank or on none: reduce what decides about a step, such as whether a gradient is infinite."
)


def begun_with_state(observed: Observed, found: Difference) -> tuple[str, str] | None:
    """Return why a parameter differs if only some ranks had state of it in the optimizer before the first step."""
    if found.kind != "parameter" or not found.nth:
        return None
    kept = states_at_start(observed, found)
    having = [rank for rank, names in sorted(kept.items()) if names]
    without = [rank for rank, names in sorted(kept.items()) if not names]
    if not having or not without:
        return None
    names = ", ".join(sorted(kept[having[0]]))
    return (
        f"before its first step the optimizer had state of it ({names}) on {ranks_text(having)}, and none on {ranks_text(without)}",
        "Load the state of the optimizer on every rank: `optimizer.load_state_dict(…)`; DistributedDataParallel shares only weights.",
    )


def by_model(found: Difference, model: SteppedModel | None, backwards: int) -> tuple[str, str]:
    """Return why a parameter of a DDP model differs and what to change, as far as the model's passes show."""
    if model is not None:
        if found.name in (*model.new, *model.replaced, *model.unfrozen):
            return (
                "it was added or changed after DistributedDataParallel wrapped the model",
                "Build, replace, freeze and unfreeze before wrapping, or wrap again afterwards.",
            )
        if model.graded and not model.forwards:
            return (
                "the model was not called through its wrapper",
                "Call the DistributedDataParallel wrapper, not the model inside it.",
            )
        if model.graded and not backwards:
            return (
                "gradients were set without any backward pass, as from torch.autograd.grad, and DistributedDataParallel reduces only "
                "those of backward passes",
                "Call `loss.backward()` instead of torch.autograd.grad, or average what it returns over the ranks with all_reduce.",
            )
        if model.forwards and not model.reduced:
            return (
                "every forward pass before the step ran in no_sync(), so nothing was reduced",
                "Leave no_sync() for the last micro-batch before each step: run its forward and backward outside.",
            )
        if 0 < model.reduced < model.forwards:
            return (
                f"only {model.reduced} of {model.forwards} forward passes before the step ran outside no_sync(), and not the last one",
                "Leave no_sync() for the last micro-batch before each step, not for another: its backward reduces what was added up. "
                "The forward pass decides it, so set require_backward_grad_sync before that.",
            )
        if backwards > model.forwards:
            return (
                f"{backwards} backward passes followed {model.forwards} forward passes, and only one backward per forward is reduced",
                "Add the losses and call backward once per forward pass.",
            )
    return (
        "ranks change it differently after DistributedDataParallel has reduced its gradient, or its gradient is never reduced",
        "Do the same on every rank between backward and the next step: clipping, a GradScaler's scale, every change of a gradient "
        "or weight.",
    )


def left_out(case: Case) -> Result | None:
    """
    Find ranks that left out a step for which they had exchanged gradients, and hold other weights since then.

    Elsewhere, ranks are compared at equal numbers of steps, which are steps of different iterations once one was left out.
    """
    if case.verdict != "passed" or has_uneven_join(case.observed):
        return None
    for optimizer in optimizers(case.observed):
        for ranks in sorted({reduction.ranks for reduction in optimizer.reductions}):
            found = _left_out(case, optimizer, ranks)
            if found:
                return found
    return None


def _left_out(case: Case, optimizer: Optimizer, ranks: Ranks) -> Result | None:
    # What each rank had exchanged when it stepped. Steps without an exchange in between are a rank's own.
    stepped = {rank: _exchanges_before_steps(case.observed.ranks[rank], optimizer.index) for rank in ranks}
    counts = {rank: len(mine) for rank, mine in stepped.items()}
    if len(set(counts.values())) == 1 or any(len(set(mine)) < counts[rank] for rank, mine in stepped.items()):
        return None
    fullest = max(ranks, key=counts.__getitem__)
    missing = (each for each in stepped[fullest] if any(each not in mine for mine in stepped.values()))
    exchanges = next(missing, None)
    if exchanges is None or _is_equal_again(optimizer, stepped, exchanges):
        return None
    nth, without = stepped[fullest].index(exchanges), [rank for rank, mine in stepped.items() if exchanges not in mine]
    listed = ", ".join(f"rank {rank}: {count}" for rank, count in counts.items())
    return failed(
        f"{ranks_text(without)} exchanged gradients for step {nth + 1} of rank {fullest}, but left it out ({listed} steps in all), and "
        f"{'holds' if len(without) == 1 else 'hold'} other weights since",
        fix=FIX_TOGETHER,
        at=next(
            each.at
            for each in case.observed.ranks[fullest].of(OptimizerStep)
            if (each.optimizer, each.nth) == (optimizer.index, nth + 1)
        ),
        ranks=without,
    )


def _is_equal_again(optimizer: Optimizer, stepped: Mapping[int, list[int]], exchanges: int) -> bool:
    """Return whether all ranks hold equal weights before the next step that all make, or at the end; also if that was not seen."""
    later = [each for each in min(stepped.values(), key=len) if each > exchanges]
    together = next((each for each in later if all(each in mine for mine in stepped.values())), None)
    weights = {}
    for rank, mine in stepped.items():
        nth = len(mine) if together is None else mine.index(together) + 1
        step = optimizer.steps.get(nth, {}).get(rank)
        held = (step.after if together is None else step.before) if step else ()
        weights[rank] = joined(held, range(len(held)))
    return len(alike(weights)) == 1 or not all(each and all(map(isfinite, each)) for each in weights.values())


def _exchanges_before_steps(rank: RankObserved, optimizer: int) -> list[int]:
    """Return how often a rank had done what it did last before its first step, at each step: no barrier or metric counts as one."""
    found: list[int] = []
    issued = Counter[object]()
    last: object = None
    exchange: object = None
    for each in rank.of(Collective, DdpForward, OptimizerStep):
        if not isinstance(each, OptimizerStep):
            last = (each.op, each.shapes) if isinstance(each, Collective) else each.ddp
            issued[last] += 1
        elif each.optimizer == optimizer:
            exchange = exchange if found else last
            found.append(issued[exchange])
    return found
