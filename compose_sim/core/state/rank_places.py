"""Say which ranks a node may report about: those that the master, or before the first round the plan, puts on it."""

from __future__ import annotations

from compose_sim.core.events.events import Event
from compose_sim.core.state.state import ClusterState


def is_on(state: ClusterState, node: str, rank: int, generation: int | None) -> bool:
    """
    Return whether a rank of a round lives on a node; in the round of now if `generation` is None.

    False for a round that the master has not reported. A framework with a driver numbers its ranks itself: there, always True.
    """
    if state.driver:
        return True
    wanted = state.generation if generation is None else generation
    round_ = next((each for each in state.rounds if each.generation == wanted), None)
    if (
        round_ is None
    ):  # events of the master come first, so only the plan is known, or nothing has happened in this round
        planned = state.ranks.get(rank)
        return not state.rounds and not wanted and planned is not None and planned.node == node
    first = 0
    for each in round_.nodes:
        size = state.nodes[each].nproc if each in state.nodes else 0
        if each == node:
            return first <= rank < first + size
        first += size
    return False


def speaks_for_another(state: ClusterState, event: Event) -> bool:
    """Return whether a node reports about a rank of another node, or one of a round that the master has not reported."""
    if event.rank is None or event.node is None or event.node not in state.nodes:
        return False
    return not is_on(state, event.node, event.rank, event.generation)
