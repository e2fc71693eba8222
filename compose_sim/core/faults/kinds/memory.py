"""What is a node that runs out of memory? A balloon in its control group grows until the kernel kills a rank for want of memory."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Order, Scene, require_running
from compose_sim.core.faults.commands import Fault
from compose_sim.errors import SpecError

SUMMARY = "Take a node's memory up to its --memory, until the kernel kills a rank (OOM)."
ENGINES = ("docker",)
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The balloon is let go of as soon as the kernel has killed: nothing is left to heal. SpecError for a node without a limit."""
    nodes = fault.nodes
    require_running(nodes, scene)
    limits = {node.name: node.memory_bytes for node in scene.plan.nodes}
    for node in nodes:
        if not limits[node]:
            raise SpecError(
                f"{node} has no memory limit of its own: to use up its memory would use up this machine's",
                hint="composesim up --memory 1g …",
            )
    do = tuple(Order(node=node, name="memory") for node in nodes)
    return Lowered(text=f"{', '.join(nodes)} out of memory", do=do, loses=nodes)
