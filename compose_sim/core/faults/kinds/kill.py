"""What is a node's sudden death? SIGKILL to all of it at once, as when a machine loses power; started again when healed."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene, Signal, Start, require_running
from compose_sim.core.faults.commands import Fault

SUMMARY = "Kill a node at once, as when a machine loses power."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """SIGKILL; the node is started again when it is healed."""
    nodes = fault.nodes
    require_running(nodes, scene)
    return Lowered(
        text=f"{', '.join(nodes)} killed",
        do=tuple(Signal(node=node, name="KILL") for node in nodes),
        undo=tuple(Start(node=node) for node in nodes),
        loses=nodes,
    )
