"""Find norms of parts that ranks do not put together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from compose_sim.core.checks.tolerances import CLIP_FACTOR, MIN_STEPS
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.precautions import NormOfPart
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place, Record


def norms_apart(observed: Observed) -> list[tuple[NormOfPart, ...]]:
    """Return what one line takes as norms of the ranks' parts, where these differ, if ranks exchange nothing directly after them."""
    lines: dict[Place | None, dict[int, list[NormOfPart]]] = {}
    for each in observed.of(NormOfPart):
        lines.setdefault(each.at, {}).setdefault(each.rank, []).append(each)
    for by_rank in lines.values():
        together = [*zip(*by_rank.values(), strict=False)] if len(by_rank) == observed.world_size else []
        apart = [each for each in together if _spread(each) > 1 + CLIP_FACTOR]
        often = len(apart) >= MIN_STEPS and 2 * len(apart) >= len(together)
        if often and not any(_exchanges(observed.ranks[rank], found) for rank, found in by_rank.items()):
            return apart
    return []


def _spread(parts: Sequence[NormOfPart]) -> float:
    least = min(each.norm for each in parts)
    return max(each.norm for each in parts) / least if least else 1.0


def _exchanges(rank: RankObserved, found: Sequence[NormOfPart]) -> bool:
    """Return whether a rank gives others a few numbers directly after norms, which may be these or the sum of their squares."""
    size = max(each.size for each in found)
    last: Record | None = None
    for each in rank.of(NormOfPart, Collective, OptimizerStep):
        if isinstance(each, Collective):
            if each.by_fsdp or each.op.startswith("reduce_scatter") or "float" not in str(each.dtype):
                continue
            if isinstance(last, NormOfPart) and sum(map(prod, each.shapes)) < size:
                return True
        last = each
    return False
