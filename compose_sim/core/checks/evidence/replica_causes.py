"""Say why replicas differ: backward passes, no_sync(), the state that an optimizer began with, steps that some ranks left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isfinite

from compose_sim.core.checks import Case, Result, failed
from compose_sim.core.checks.evidence.gradient_sums import Optimizer, Ranks, alike, joined, optimizers
from compose_sim.core.checks.evidence.replica_diff import Difference, has_uneven_join, states_at_start
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.models import OptimizerStep, SteppedModel
from compose_sim.node.records.process_groups import Collective, DdpForward, UntrackedWait

FIX_TOGETHER = (
    "Step on every rank or on none: reduce what decides about a step, such as whether a gradient is infinite."
)
_LEAST = 3


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


def never_stepped(case: Case) -> Result | None:
    """Find ranks that reduce the gradients of a DDP model and never step, although others do and nothing sends them the weights."""
    steps = {rank.rank: list(rank.of(OptimizerStep)) for rank in case.observed}
    reduced = {rank.rank: sum(1 for _ in rank.of(DdpForward)) for rank in case.observed}
    idle = [rank for rank, mine in steps.items() if not mine and reduced[rank] >= _LEAST]
    first = next((mine[0] for mine in steps.values() if len(mine) >= _LEAST), None)
    operations = ("broadcast", "all_reduce", "scatter")
    sends = any(sum(each.op in operations for each in rank.of(Collective)) >= _LEAST for rank in case.observed)
    if not idle or first is None or case.verdict != "passed" or sends or any(case.observed.of(UntrackedWait)):
        return None
    return failed(
        f"{ranks_text(idle)} reduced gradients {reduced[idle[0]]} times and never stepped, while rank {first.rank} stepped "
        f"{len(steps[first.rank])} times: their weights stay as they were",
        fix="Step on every rank: the reduced gradient is the same on all of them.",
        at=first.at,
        ranks=idle,
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
