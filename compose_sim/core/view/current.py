"""Say in which collective each rank is at this moment, and for whom it waits, from the pages of memory that ranks keep up to date."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from compose_sim.core.state.node_phase import phase_of
from compose_sim.core.state.state import ClusterState
from compose_sim.core.state.timeline import KINDS

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
