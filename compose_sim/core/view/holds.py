"""Say of collectives during which a fault held ranks that the others waited for these, although all had reached them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compose_sim.core.state.state import ClusterState
from compose_sim.core.state.timeline import Span

_KINDS = ("pause", "stop", "rank-stop")
_SHORTEST_S = 0.02


@dataclass(frozen=True, slots=True)
class Hold:
    """Ranks that a fault held, and from when to when, in Unix seconds."""

    ranks: tuple[int, ...]
    began: float
    ended: float


def holds_of(state: ClusterState) -> list[Hold]:
    """Return the holds that have ended: a collective ends only after them."""
    holds = []
    for fault in state.faults.values():
        if fault.kind in _KINDS and fault.heal_begun_at is not None:
            on_nodes = (rank for rank, each in sorted(state.ranks.items()) if each.node in fault.nodes)
            ranks = tuple(on_nodes) if fault.rank is None else (fault.rank,)
            holds += [Hold(ranks, fault.done_at or fault.begun_at, fault.heal_begun_at)] if ranks else []
    return holds


def divided_at_holds(span: Span, holds: Sequence[Hold]) -> Iterator[Span]:
    """Yield what is left of a span that moves data, and for the time of a hold a wait; that of a held rank is for itself."""
    ended = span.began + span.lasted
    for hold in holds if span.kind == "moving" else ():
        began = max(span.began, hold.began)
        if began + _SHORTEST_S < hold.ended <= ended:
            late = span.rank if span.rank in hold.ranks else hold.ranks[0]
            yield replace(span, lasted=began - span.began)
            yield replace(span, kind="waiting", began=began, lasted=hold.ended - began, late=late)
            span = replace(span, began=hold.ended, lasted=ended - hold.ended)
    yield span
