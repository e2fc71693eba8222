"""What is a node that stands still? SIGSTOP to each of its processes: its connections stay open, and nobody answers on them."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene, Signal, require_running
from compose_sim.core.faults.commands import Fault

SUMMARY = "Stop all processes of a node (SIGSTOP); its connections stay open."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """SIGSTOP; SIGCONT when it is healed."""
    nodes = fault.nodes
    require_running(nodes, scene)
    return Lowered(
        text=f"{', '.join(nodes)} stopped",
        do=tuple(Signal(node=node, name="STOP") for node in nodes),
        undo=tuple(Signal(node=node, name="CONT") for node in nodes),
        loses=nodes,
    )
