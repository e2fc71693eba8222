"""Judge whether ranks wait for one that prepares alone, or reduce gradients more often than they step."""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.checks.evidence.gradient_sums import optimizers
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.timings import StepTimes, Wait

QUESTION = "Do ranks work all the time, and reduce gradients once per step?"

_LONG_S = 5.0
_NOT_PREPARED = ("init_process_group", "DDP's gradient all-reduce")
_MANY = 4  # reductions per step
_NEAR = 0.01
_FIX_PREPARE = (
    "Prepare the data once, before the job or in a job of its own, and let every rank read the result; or divide the work "
    "among the ranks."
)
_FIX_REDUCE = "Run all micro-batches but the last of a step, forward and backward, under `with ddp_model.no_sync():`."


def judge(case: Case) -> Result:
    """Look at the waits before the first step, and at the reductions of each step."""
    if case.observed.world_size < 2:
        return not_applicable("there is only one rank")
    if not case.observed.first(OptimizerStep):
        return not_applicable("no optimizer stepped")
    return (
        _prepares_alone(case.observed)
        or _reduces_often(case.observed)
        or passed(
            "no rank kept the others waiting for long before the first step, nor reduced its gradients several times a step"
        )
    )


def _prepares_alone(observed: Observed) -> Result | None:
    """Find the wait before the first step in which most ranks lost the most time."""
    waits: dict[tuple[str, int], dict[int, Wait]] = {}
    for times in observed.of(StepTimes):
        for wait in times.waits if times.step <= 1 else ():
            waits.setdefault((wait.group, wait.sequence), {})[times.rank] = wait
    worst: tuple[float, dict[int, Wait], list[int]] | None = None
    for by_rank in waits.values():
        first = by_rank[min(by_rank)]
        # In the first backward pass, ranks wait for a first batch that loads slowly: training has begun.
        if len(by_rank) < max(2, first.size) or first.what.startswith(_NOT_PREPARED):
            continue
        late = [rank for rank, wait in by_rank.items() if wait.lasted < _LONG_S * 1e6 / 2]
        lost = min((wait.lasted / 1e6 for rank, wait in by_rank.items() if rank not in late), default=0.0)
        if lost >= _LONG_S and 0 < 2 * len(late) <= len(by_rank) and (worst is None or lost > worst[0]):
            worst = lost, by_rank, late
    if worst is None:
        return None
    lost, by_rank, late = worst
    waiting = [rank for rank in by_rank if rank not in late]
    return warned(
        f"{ranks_text(waiting)} waited {lost:.0f} s for {ranks_text(late)} before the first step, in {by_rank[waiting[0]].what}",
        fix=_FIX_PREPARE,
        ranks=sorted(late),
    )


def _reduces_often(observed: Observed) -> Result | None:
    """Find steps that accumulate gradients over several backward passes, each of which reduces them over the ranks."""
    times = {
        each.index: step.mean_times * step.backwards
        for each in optimizers(observed)
        for by_rank in each.steps.values()
        for step in by_rank.values()
        if step.mean_times
    }
    found: dict[int, list[tuple[OptimizerStep, int]]] = {}
    for rank in observed:
        for step in rank.of(OptimizerStep):
            for model in step.models:
                found.setdefault(step.optimizer, []).append(
                    (step, model.reduced if model.reduced == model.forwards == step.backwards else 0)
                )
    for optimizer, steps in sorted(found.items()):
        counts = {reduced for _, reduced in steps}
        count = max(counts)
        accumulates = count >= _MANY or abs(times.get(optimizer, 0.0) - 1) < _NEAR
        step = steps[0][0]
        if (
            len(counts) == 1
            and count > 1
            and accumulates
            and not any(each.retained or each.within > 1 for each, _ in steps)
        ):
            return warned(
                f"each step is preceded by {count} backward passes, and each of them reduces all gradients: {count} all-reduces of "
                "the model per step, where one is enough",
                fix=_FIX_REDUCE,
                at=step.at,
            )
    return None
