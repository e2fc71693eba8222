"""Judge whether a forward pass that is repeated with the same inputs and random numbers gives the same bits."""

from __future__ import annotations

from math import isfinite

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.wording import ranks_text
from compose_sim.node.records.models import RepeatedPass

QUESTION = "Does a repeated forward pass give the same bits?"

_ROUNDING = 1e-4  # relative: atomic additions in another order stay below


def judge(case: Case) -> Result:
    """Compare ranks: if only some of them cannot repeat their own results, it is not the code that all of them run."""
    passes = {rank.rank: list(rank.of(RepeatedPass)) for rank in case.observed}
    repeated = {rank: mine for rank, mine in passes.items() if mine}
    if not repeated:
        return not_applicable("no forward pass was repeated: only `composesim check` does that, for models of one rank")
    different = {rank: [each for each in mine if not each.equal] for rank, mine in repeated.items()}
    unequal = {rank: mine for rank, mine in different.items() if mine}
    count = sum(map(len, repeated.values()))
    if not unequal:
        return passed(f"{count} forward passes repeated with the same inputs and random numbers: the same bits")
    rank, mine = max(unequal.items(), key=lambda each: max(one.difference for one in each[1]))
    worst = max(mine, key=lambda each: each.difference)
    size = f"by {worst.difference:.2g} of the largest value" if isfinite(worst.difference) else "in shape"
    detail = (
        f"{len(mine)} of {len(repeated[rank])} repeated forward passes of {worst.type} on rank {rank} gave another result, e.g. number "
        f"{worst.number} ({size})"
    )
    if 2 * len(unequal) < len(repeated) and worst.difference > _ROUNDING:
        node = case.observed.ranks[rank].node
        others = sorted(set(repeated) - set(unequal))
        return failed(
            f"{detail}, while {ranks_text(others)} repeat theirs exactly: silent data corruption on {node}",
            fix=f"Take the machine of {node} out of the job and test its processor, GPU and memory.",
            ranks=sorted(unequal),
        )
    return warned(
        f"{detail}: the model uses operations whose result is not determined, or something that is not a module's state",
        fix="Call `torch.use_deterministic_algorithms(True)`, and draw random numbers only from generators that are seeded.",
        ranks=sorted(unequal),
    )
