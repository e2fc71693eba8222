"""What is a node's orderly shutdown? SIGTERM, as a preempted machine gets it: its ranks have two seconds to end."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene, Signal, Start, require_running
from compose_sim.core.faults.commands import Fault

SUMMARY = "Tell a node to shut down, as when a spot machine is taken back."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """SIGTERM to the node, which passes it on to its ranks; the node is started again when it is healed."""
    nodes = fault.nodes
    require_running(nodes, scene)
    return Lowered(
        text=f"{', '.join(nodes)} told to shut down",
        do=tuple(Signal(node=node, name="TERM") for node in nodes),
        undo=tuple(Start(node=node) for node in nodes),
        loses=nodes,
    )
