"""Say for whom each rank waits at this moment, and which spans of the timeline are the time that a fault or a signal held ranks.

What ranks are in now comes from the pages of memory that they keep up to date. In a span that a hold divides, ranks had all reached
a collective, but data could not move: a fault or a signal held ranks, so the others waited for these, or a partition was between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from compose_sim.core.state.progress import phase_of
from compose_sim.core.state.state import ClusterState
from compose_sim.core.state.timeline import KINDS, Span

_MOST_NAMED = 8  # ranks that a rank waits for
_INIT = "init_process_group"
_HOLDS = ("paused", "stopped", "isolated")  # phases of a node from which no data come


@dataclass(frozen=True, slots=True)
class CurrentWait:
    """What a rank waits in now, as in `node/records/timings.py`; `since` is in Unix seconds."""

    what: str
    since: float | None
    group: str = ""
    size: int = 0
    number: int = 0
    left: frozenset[int] = frozenset()  # ranks that have been in it, and are no longer

    @property
    def key(self) -> tuple[str, str, int]:
        """What is the same for all ranks that wait together."""
        operation = "" if ">" in self.group else self.what.partition(" ")[0]
        return self.group, operation, self.number


def current_waits(
    state: ClusterState,
    waits: Mapping[int, CurrentWait],
    members: Mapping[tuple[int, str], Set[int]],
    *,
    now: float,
    halted: Set[int] = frozenset(),
) -> dict[int, list[Any]]:
    """
    Return, for each rank that is in a collective, its kind (an index of KINDS), what it is, when it began, how long ago, and the
    ranks that it waits for. A rank waits for those of its group that have not reached the same collective, or that are `halted` in
    it, as are all ranks of a paused, stopped or isolated node.
    """
    present = {rank for rank, each in state.ranks.items() if each.phase != "exited" and not each.stopped}
    phases = {name: phase_of(state, name) for name in state.nodes}
    held = {name for name, phase in phases.items() if phase in _HOLDS}
    active = {rank for rank in present - halted if state.ranks[rank].node not in held}
    joining = {rank: CurrentWait(_INIT, None) for rank in active if state.ranks[rank].in_init}
    waits = joining | {rank: each for rank, each in waits.items() if rank in active}
    together: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for rank, each in waits.items():
        together[each.key].add(rank)
    found = {}
    for rank, each in sorted(waits.items()):
        here = together[each.key]
        expected = _expected(each, present, members.get((state.generation or 0, each.group), set()))
        # Who waits for nobody comes first.
        late = sorted(expected - here - each.left, key=lambda other: (other in waits, other))
        is_cut = any(phases[state.ranks[other].node] == "partitioned" for other in here)
        complete = (len(here) == each.size or bool(expected)) and not is_cut
        kind = "waiting" if late else "moving" if complete else "collective"
        began = None if each.since is None else max(0.0, round(each.since - (state.started_at or each.since), 3))
        lasted = None if each.since is None else max(0.0, round(now - each.since, 1))
        found[rank] = [KINDS.index(kind), each.what, began, lasted, late[:_MOST_NAMED]]
    return found


def _expected(wait: CurrentWait, present: set[int], members: Set[int]) -> Set[int]:
    """Return the ranks that take part; none if they are not known. A size of 0 stands for the whole run."""
    sender, is_message, receiver = wait.group.partition(">")
    if is_message:
        return {int(each) for each in (sender, receiver) if each.isdecimal()}
    if wait.size in (0, len(present)):
        return present
    return members if len(members) == wait.size else set()


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
