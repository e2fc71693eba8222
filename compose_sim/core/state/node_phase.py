"""Name the phase of a node: as faults and scaling left it (paused, killed, absent), or as the node itself reports."""

from __future__ import annotations

from compose_sim.core.state.fault_attribution import active_faults
from compose_sim.core.state.state import ClusterState

ABSENT = "absent"
# The phase of a node under a fault that was not healed. Other faults do not change the phase.
_HELD = {"pause": "paused", "stop": "stopped", "isolate": "isolated", "partition": "partitioned"}
_ENDED = {"kill": "killed", "term": "stopped"}


def phase_of(state: ClusterState, name: str) -> str:
    """Return one word: `running`, `paused`, `killed`, `absent`, …."""
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
    """Return the phase of each node whose phase comes from a fault or from scaling."""
    phases = {name: phase_of(state, name) for name in state.nodes}
    return {name: phase for name, phase in phases.items() if phase != state.nodes[name].phase}
