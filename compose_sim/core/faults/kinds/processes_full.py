"""What is a node on which nothing can be started any more? One whose limit of processes and threads is used up."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Order, Scene, require_running
from compose_sim.core.faults.commands import Fault

SUMMARY = "Use up all processes and threads that a node may have: none can be started."
ENGINES = ("docker",)
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A process with as many threads as the node's control group allows; it is ended when it is healed."""
    nodes = fault.nodes
    require_running(nodes, scene)
    return Lowered(
        text=f"{', '.join(nodes)} can start no process",
        do=tuple(Order(node=node, name="processes_full") for node in nodes),
        undo=tuple(Order(node=node, name="processes_full", on=False) for node in nodes),
    )
