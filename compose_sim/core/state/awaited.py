"""Name what a run waits for until it trains."""

from __future__ import annotations

from compose_sim.core.state.state import ClusterState

_MOST = 4  # names


def awaited(state: ClusterState, *, is_command: bool = False) -> str:
    """
    Return `node-2 and node-3 to start`, `rank 0, which has not imported torch`, …; "" once ranks train, or the run is ending.

    Nothing is known about a command except that it runs, and of a script not whether it will ever train.
    """
    if state.first_step_at or state.stopping or state.failures or any(rank.has_left for rank in state.ranks.values()):
        return ""
    nodes = [name for name in state.wanted if state.nodes[name].phase == "creating"]
    if nodes:
        return f"{_named(nodes)} to start"
    if state.driver:
        return "" if state.driver.ready_at else "the framework to report that all nodes are there"
    if state.rendezvous_at is None:
        return f"the rendezvous of {len(state.wanted)} nodes" if len(state.wanted) > 1 else "the rendezvous"
    if is_command:
        return ""
    starting, joining = (
        [f"rank {rank.rank}" for rank in state.ranks.values() if rank.phase == phase] for phase in ("starting", "init")
    )
    if starting and state.versions:
        return f"{_named(starting)} to join a process group or take a step"
    if starting:
        return f"{_named(starting)}, which {'has' if len(starting) == 1 else 'have'} not imported torch"
    return f"{_named(joining)} to join the process group" if joining else "the first step"


def _named(names: list[str]) -> str:
    shown = names if len(names) <= _MOST else [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
