"""Say of collectives that ranks had all reached, but in which data could not move for a time, what that time was.

A fault or a signal held ranks, so the others waited for these, or a partition was between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compose_sim.core.state.state import ClusterState
from compose_sim.core.state.timeline import Span

_KINDS = ("pause", "stop", "rank-stop", "isolate")
_SHORTEST_S = 0.02
_NOTICED_WITHIN_S = 1.0  # an agent looks at its ranks with every heartbeat


@dataclass(frozen=True, slots=True)
class Hold:
    """Ranks that were held, and from when to when, in Unix seconds."""

    ranks: tuple[int, ...]  # none: nobody knows who waits for whom
    began: float
    ended: float | None  # None if it has not ended: only what was in progress when it began was held
    is_noticed: bool = False  # whether the times are when an agent noticed it


def holds_of(state: ClusterState) -> list[Hold]:
    """Return the holds of ranks by faults, by signals, and by partitions."""
    holds = []
    for fault in state.faults.values():
        began = fault.done_at or fault.begun_at
        if fault.kind == "partition":
            holds.append(Hold((), began, fault.heal_begun_at))
        elif fault.kind in _KINDS:
            on_nodes = (rank for rank, each in sorted(state.ranks.items()) if each.node in fault.nodes)
            ranks = tuple(on_nodes) if fault.rank is None else (fault.rank,)
            holds += [Hold(ranks, began, fault.heal_begun_at)] if ranks else []
    now = ((each.rank, each.halted_since, None) for each in state.ranks.values() if each.halted_since is not None)
    for rank, noticed, ended in (*state.halts, *now):
        if not any(rank in each.ranks and each.began <= noticed <= (each.ended or noticed) for each in holds):
            holds.append(Hold((rank,), noticed, ended, is_noticed=True))
    return holds


def divided_at_holds(span: Span, holds: Sequence[Hold]) -> Iterator[Span]:
    """Yield what is left of a span that moves data, and for the time of a hold a wait; that of a held rank is for itself."""
    ended = span.began + span.lasted
    for hold in holds if span.kind == "moving" else ():
        began, until = max(span.began, hold.began), _end_within(hold, span.began, ended)
        if began + _SHORTEST_S < until:
            yield replace(span, lasted=began - span.began)
            late = None if not hold.ranks else span.rank if span.rank in hold.ranks else hold.ranks[0]
            kind = "collective" if late is None else "waiting"
            yield replace(span, kind=kind, began=began, lasted=until - began, late=late)
            if until == ended:
                return
            span = replace(span, began=until, lasted=ended - until)
    yield span


def _end_within(hold: Hold, began: float, ended: float) -> float:
    """Return until when a hold held a collective; 0 if it did not, because the collective ended before it or began after it."""
    if (hold.ended is None or hold.is_noticed) and began > hold.began:
        return 0.0
    if hold.ended is None:
        return ended
    if ended < hold.ended - (_NOTICED_WITHIN_S if hold.is_noticed else 0.0):
        return 0.0
    return min(hold.ended, ended)
