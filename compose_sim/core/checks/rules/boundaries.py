"""Judge which gradients stages of a pipeline give one another."""

from __future__ import annotations

from collections import Counter

from compose_sim.core.checks import Case, Result, failed
from compose_sim.core.checks.tolerances import MIN_STEPS
from compose_sim.node.records.gradients import BoundaryGradient


def crossed_micro_batches(case: Case) -> Result | None:
    """Find stages that begin backward passes from an activation with the gradient of another one."""
    notes = list(case.observed.of(BoundaryGradient))
    counts = Counter((each.is_input, value) for each in notes for value in {each.activation, each.gradient})
    alone = [
        each for each in notes if counts[each.is_input, each.activation] == counts[each.is_input, each.gradient] == 1
    ]
    computed = {each.activation: each for each in alone if each.is_input}
    by_gradient = {each.gradient: each for each in computed.values()}
    crossed = [
        (used, given)
        for used in alone
        if not used.is_input
        and (own := computed.get(used.activation)) is not None
        and (given := by_gradient.get(used.gradient)) is not None
        and own.rank == given.rank != used.rank
        and own is not given
    ]
    if len(crossed) < MIN_STEPS:
        return None
    used, given = crossed[0]
    return failed(
        f"in {len(crossed)} backward passes rank {used.rank} uses the gradient that rank {given.rank} computed for another "
        "activation than the one from which it begins: stages work through micro-batches in different orders",
        fix="Go through the micro-batches in the same order on all stages: either `popleft()` or `pop()` everywhere.",
        at=used.at,
        ranks=sorted({used.rank, given.rank}),
    )
