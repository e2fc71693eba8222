"""Find weights that ranks of a tensor-parallel model hold alike, beside parts of others, and that drift apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from compose_sim.core.checks.sketches import Optimizer, Ranks, alike, distance, norm, optimizers
from compose_sim.core.checks.tolerances import DRIFT, MIN_STEPS
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor
from compose_sim.node.records.models import DdpModel
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

_MAX_METRIC = 8  # numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftingCopy:
    """Ranks that add up activations in every step began with equal values of this parameter, and end with different ones."""

    ranks: Ranks
    copy: SketchedTensor
    part: SketchedTensor  # a parameter of which each rank had another value from the start
    steady: SketchedTensor | None  # one that began equal, and for which each rank computes the same gradient
    at: Place | None  # where the activations are added up


def drifting_copy(observed: Observed) -> DriftingCopy | None:
    """
    Return a copy that drifts, if ranks hold different parts of some matrices.

    Where some parts differ from the start, a matrix that is equal is no part, unless it begins with a constant. Either all copies
    drift, and activations are added up in backward passes as well. Or nothing is added up there, ranks compute the same gradient of
    some copies, and so have the same samples, and those that drift come before all parts.
    """
    if observed.first(DdpModel):
        return None
    for optimizer in optimizers(observed):
        for ranks, (count, at) in _adding_activations(observed, optimizer).items():
            first = optimizer.steps[1]
            begun = _begun(optimizer, ranks)
            parts = [row for row in begun if len(begun[row]) == len(ranks)]
            copies = [row for row in begun if len(begun[row]) == 1 and norm(first[ranks[0]].before[row] or ())]
            drifting = [row for row in copies if _drifts(optimizer, row, ranks)]
            steady = [row for row in copies if row not in drifting and _is_computed_alike(optimizer, row, ranks)]
            in_backward = {by_rank[rank].in_backward > 0 for by_rank in optimizer.steps.values() for rank in ranks}
            in_both = count >= 2 * len(optimizer.steps) and in_backward == {True}
            is_before = in_backward == {False} and max(drifting, default=0) < min(parts, default=0)
            if parts and drifting and ((steady and is_before) or (in_both and drifting == copies)):
                rows = optimizer.rows
                copy, part, other = rows[drifting[0]], rows[parts[0]], rows[steady[0]] if steady else None
                return DriftingCopy(ranks=ranks, copy=copy, part=part, steady=other, at=at)
    return None


def unreduced_copies(observed: Observed) -> tuple[Ranks, list[SketchedTensor], int] | None:
    """
    Return matrices that ranks begin with alike and train apart, beside parts, and how many others they reduce the gradients of.

    Where one seed makes all experts, these begin alike as well. So some of the matrices must differ from the start.
    """
    for optimizer in optimizers(observed):
        for ranks in sorted({each.ranks for each in optimizer.reductions}):
            by_step = [set(each.rows) for each in optimizer.reductions if each.ranks == ranks]
            first = optimizer.steps.get(1, {})
            if len(by_step) < MIN_STEPS or not {*ranks} <= first.keys():
                continue
            ever = set[int]().union(*(each.rows for each in optimizer.reductions))
            begun = {row: held for row, held in _begun(optimizer, ranks).items() if row not in ever}
            copies = [row for row in begun if len(begun[row]) == 1 and norm(first[ranks[0]].before[row] or ())]
            drifting = [row for row in copies if _drifts(optimizer, row, ranks)]
            reduced = set.intersection(*by_step)
            if reduced and drifting and any(len(each) == len(ranks) for each in begun.values()):
                return ranks, [optimizer.rows[row] for row in drifting], len(reduced)
    return None


def begun_apart(observed: Observed, index: int) -> bool:
    """Return whether each rank began with its own values of all matrices of an optimizer; vectors often begin alike, as zeros."""
    for optimizer in optimizers(observed):
        ranks = tuple(optimizer.steps.get(1, ()))
        if optimizer.index == index and len(ranks) > 1 and (begun := _begun(optimizer, ranks)):
            return all(len(each) == len(ranks) for each in begun.values())
    return False


def _begun(optimizer: Optimizer, ranks: Ranks) -> dict[int, list[Ranks]]:
    """Divide the ranks, for each matrix, into those that had the same values before the first step."""
    first, matrices = optimizer.steps[1], [row for row, each in enumerate(optimizer.rows) if len(each.shape) > 1]
    return {row: alike({rank: first[rank].before[row] or () for rank in ranks}) for row in matrices}


def _adding_activations(observed: Observed, optimizer: Optimizer) -> dict[Ranks, tuple[int, Place | None]]:
    """Return the groups that all-reduce activations in the forward pass of each step, how often, and where."""
    steps = list(optimizer.steps.values())
    if 1 not in optimizer.steps or len(steps) < MIN_STEPS:
        return {}
    shapes, found = {row.shape for row in optimizer.rows}, dict[Ranks, list[Collective]]()
    for each in observed.ranks[min(optimizer.steps[1])].of(Collective):
        is_large = any(prod(shape) > _MAX_METRIC and shape not in shapes for shape in each.shapes)
        if each.op == "all_reduce" and "float" in str(each.dtype) and is_large and not each.by_fsdp:
            found.setdefault(tuple(sorted(each.group)), []).append(each)
    return {
        ranks: (len(reduced), reduced[0].at)
        for ranks, reduced in found.items()
        if len(ranks) > 1
        and len(reduced) >= len(steps)
        and all(_reduces_in_forward(by_rank, ranks, len(optimizer.rows)) for by_rank in steps)
    }


def _reduces_in_forward(steps: Mapping[int, SketchedStep], ranks: Ranks, count: int) -> bool:
    """Return whether all these ranks made the step, with collectives in the forward pass."""
    own = [steps[rank] for rank in ranks if rank in steps]
    return len(own) == len(ranks) and all(
        each.in_forward and len(each.before) == len(each.after) == count for each in own
    )


def _is_computed_alike(optimizer: Optimizer, row: int, ranks: Ranks) -> bool:
    """Return whether each rank by itself computes the same gradient of a parameter in each step."""
    owns = [{rank: by_rank[rank].own[row] or () for rank in ranks} for by_rank in optimizer.steps.values()]
    return all(all(map(norm, own.values())) and len(alike(own)) == 1 for own in owns)


def _drifts(optimizer: Optimizer, row: int, ranks: Ranks) -> bool:
    """Return whether a parameter ends apart on these ranks, by more than rounding makes of how far it has moved."""
    last = optimizer.steps[max(optimizer.steps)]
    begun, *ends = (optimizer.steps[1][ranks[0]].before[row] or (), *(last[rank].after[row] or () for rank in ranks))
    apart = max(distance(ends[0], each) for each in ends)
    return apart > DRIFT * max(distance(begun, each) for each in ends)
