"""What is a node that freezes? All of it is held by the kernel's freezer, as a virtual machine is while it is moved."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Pause, Scene, require_running
from compose_sim.core.faults.commands import Fault

SUMMARY = "Freeze a node, as when its virtual machine is moved."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """Frozen, and thawed when it is healed. A node that is silent for 5 s counts as lost, and joins again when it is back."""
    nodes = fault.nodes
    require_running(nodes, scene)
    return Lowered(
        text=f"{', '.join(nodes)} frozen",
        do=tuple(Pause(node=node) for node in nodes),
        undo=tuple(Pause(node=node, on=False) for node in nodes),
        loses=nodes,
    )
