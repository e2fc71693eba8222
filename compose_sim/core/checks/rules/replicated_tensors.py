"""Judge whether tensors that ranks declare replicated, such as the inputs of tensor parallelism, are equal on all of them."""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.units import format_count
from compose_sim.node.records.precautions import ReplicatedTensor

QUESTION = "Do ranks of a mesh hold equal values of what they declare replicated?"

_FIX = (
    "Feed all ranks of a tensor-parallel group the same samples: give the sampler the data-parallel rank and size "
    '(`num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank()`), not the global ones.'
)


def judge(case: Case) -> Result:
    """Compare the tensors that DTensor.from_local was given as replicated, call by call."""
    calls: dict[tuple[tuple[int, ...], int], dict[int, ReplicatedTensor]] = {}
    for each in case.observed.of(ReplicatedTensor):
        calls.setdefault((each.ranks, each.number), {})[each.rank] = each
    compared = [
        by_rank
        for by_rank in calls.values()
        if len(by_rank) > 1 and len({each.shape for each in by_rank.values()}) == 1 and _first(by_rank).is_input
    ]
    if not compared:
        return not_applicable("no tensor was declared replicated over a device mesh")
    different = [by_rank for by_rank in compared if len({each.hash for each in by_rank.values()}) > 1]
    if different and different[0] is compared[0] and 2 * len(different) > len(compared):
        first = _first(different[0])
        return failed(
            f"{ranks_text(first.ranks)} are one tensor-parallel group, but {len(different)} of {len(compared)} inputs that they "
            f"declare replicated differ, from the first one ({'×'.join(map(str, first.shape))}): they are fed different samples",
            fix=_FIX,
            at=first.at,
            ranks=first.ranks,
        )
    return passed(f"{format_count(len(compared), 'input')} declared replicated, equal on all ranks of their mesh")


def _first(by_rank: dict[int, ReplicatedTensor]) -> ReplicatedTensor:
    return by_rank[min(by_rank)]
