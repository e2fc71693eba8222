"""What would a person call the state of a node? Paused, killed or away, where somebody wished that; else what it says itself."""

from __future__ import annotations

from compose_sim.core.state.fault_attribution import active_faults
from compose_sim.core.state.state import ClusterState

ABSENT = "absent"
# What a fault makes of a node, as long as it lasts. Others leave it what it is.
_HELD = {"pause": "paused", "stop": "stopped", "isolate": "isolated", "partition": "partitioned"}
_ENDED = {"kill": "killed", "term": "stopped"}


def phase_of(state: ClusterState, name: str) -> str:
    """`running`, `paused`, `killed`, `absent`, …: one word."""
    node = state.nodes[name]
    for fault in reversed(active_faults(state)):
        if name not in (*fault.nodes, *fault.loses):
            continue
        if fault.kind in _HELD and node.phase != "exited":
            return _HELD[fault.kind]
        if fault.kind in _ENDED and node.is_gone:
            return _ENDED[fault.kind]
    return ABSENT if name not in state.wanted and node.phase in ("creating", "exited", "ended", "lost") else node.phase


def wished(state: ClusterState) -> dict[str, str]:
    """The nodes that are as they are because somebody wished it, with that word."""
    phases = {name: phase_of(state, name) for name in state.nodes}
    return {name: phase for name, phase in phases.items() if phase != state.nodes[name].phase}
