"""Judge whether what the ranks of a tensor-parallel group must hold alike is equal: declared inputs, or copies beside their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.gradient_sums import Optimizer, Ranks, alike, distance, norm, optimizers
from compose_sim.core.checks.wording import ranks_text, where
from compose_sim.core.events.observations import Observed
from compose_sim.core.units import format_count
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor
from compose_sim.node.records.models import DdpModel
from compose_sim.node.records.precautions import ReplicatedTensor
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

QUESTION = "Do ranks of a mesh hold equal values of what they declare replicated?"

_FIX = (
    "Feed all ranks of a tensor-parallel group the same samples: give the sampler the data-parallel rank and size "
    '(`num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank()`), not the global ones.'
)
_FIX_BY_HAND = (
    "Feed all ranks of a tensor-parallel group the same samples: divide the data among the groups, not among their ranks. If ranks "
    "work on parts of a sequence, add up the gradients of what they all hold."
)
_LEAST = 3  # steps
_FEW = 8  # numbers: a metric
_APART = 0.01  # of how far the copy has moved


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftingCopy:
    """Ranks that add up activations in every step began with equal values of this parameter, and end with different ones."""

    ranks: Ranks
    copy: SketchedTensor
    part: SketchedTensor  # a parameter of which each rank had another value from the start
    at: Place | None  # where the activations are added up


def judge(case: Case) -> Result:
    """Compare the tensors that DTensor.from_local was given as replicated, call by call; and copies beside parts held by hand."""
    calls: dict[tuple[tuple[int, ...], int], dict[int, ReplicatedTensor]] = {}
    for each in case.observed.of(ReplicatedTensor):
        calls.setdefault((each.ranks, each.number), {})[each.rank] = each
    compared = [
        by_rank
        for by_rank in calls.values()
        if len(by_rank) > 1 and len({each.shape for each in by_rank.values()}) == 1 and _first(by_rank).is_input
    ]
    drifting = drifting_copy(case.observed)
    if drifting:
        return _drifted(drifting)
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


def _drifted(found: DriftingCopy) -> Result:
    size = "×".join(map(str, found.copy.shape))
    return failed(
        f"{ranks_text(found.ranks)} hold different parts of the model, such as parameter {found.part.name}, and add up activations in "
        f"every step{where(found.at)}, but parameter {found.copy.name} ({size}), which began equal on all of them, drifts apart: they "
        "are fed different samples, or do not add up its gradient",
        fix=_FIX_BY_HAND,
        at=found.at,
        ranks=found.ranks,
    )


def drifting_copy(observed: Observed) -> DriftingCopy | None:
    """
    Return a copy that drifts, if ranks hold different parts of some matrices, and no matrix that began equal stays equal.

    Where some parts differ from the start, a matrix that is equal is no part, unless it is zero.
    """
    if observed.first(DdpModel):
        return None
    for optimizer in optimizers(observed):
        if 1 not in optimizer.steps:
            continue
        for ranks, at in _adding_activations(observed, optimizer).items():
            matrices = [row for row, each in enumerate(optimizer.rows) if len(each.shape) > 1]
            begun = {
                row: alike({rank: optimizer.steps[1][rank].before[row] or () for rank in ranks}) for row in matrices
            }
            parts = [row for row in matrices if len(begun[row]) == len(ranks)]
            copies = [
                row for row in matrices if len(begun[row]) == 1 and norm(optimizer.steps[1][ranks[0]].before[row] or ())
            ]
            if parts and copies and all(_drifts(optimizer, row, ranks) for row in copies):
                return DriftingCopy(ranks=ranks, copy=optimizer.rows[copies[0]], part=optimizer.rows[parts[0]], at=at)
    return None


def _adding_activations(observed: Observed, optimizer: Optimizer) -> dict[Ranks, Place | None]:
    """Return the groups that all-reduce what is no gradient before and during the backward passes of each step, and where."""
    shapes = {row.shape for row in optimizer.rows}
    found: dict[Ranks, list[Collective]] = {}
    for each in observed.ranks[min(optimizer.steps[1])].of(Collective):
        is_large = any(prod(shape) > _FEW and shape not in shapes for shape in each.shapes)
        if each.op == "all_reduce" and "float" in str(each.dtype) and is_large and not each.by_fsdp:
            found.setdefault(tuple(sorted(each.group)), []).append(each)
    steps = list(optimizer.steps.values())
    return {
        ranks: reduced[0].at
        for ranks, reduced in found.items()
        if len(ranks) > 1
        and len(steps) >= _LEAST
        and len(reduced) >= 2 * len(steps)
        and all(_reduces_in_both(by_rank, ranks, len(optimizer.rows)) for by_rank in steps)
    }


def _reduces_in_both(steps: Mapping[int, SketchedStep], ranks: Ranks, count: int) -> bool:
    """Return whether all these ranks made the step, with collectives in the forward and the backward pass."""
    mine = [steps[rank] for rank in ranks if rank in steps]
    return len(mine) == len(ranks) and all(
        each.in_forward and each.in_backward and len(each.before) == len(each.after) == count for each in mine
    )


def _drifts(optimizer: Optimizer, row: int, ranks: Ranks) -> bool:
    """Return whether a parameter ends apart on these ranks, by more than rounding makes of how far it has moved."""
    last = optimizer.steps[max(optimizer.steps)]
    begun, *ends = (optimizer.steps[1][ranks[0]].before[row] or (), *(last[rank].after[row] or () for rank in ranks))
    apart = max(distance(ends[0], each) for each in ends)
    return apart > _APART * max(distance(begun, each) for each in ends)
