"""What is an isolated node? One that runs, and that no packet of any node or of the master reaches, nor the other way round."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene, require_running
from compose_sim.core.faults.commands import Fault
from compose_sim.core.network.node_network import MASTER, Cut, NetworkFault

SUMMARY = "Cut a node off from all others and from the master, as when its cable is pulled."
ENGINES = ("docker",)
NEEDS = "netfilter"


def lower(fault: Fault, scene: Scene) -> Lowered:
    """Cuts, both ways, around each of the nodes."""
    require_running(fault.nodes, scene)
    names = (MASTER, *(node.name for node in scene.plan.nodes))
    cuts = []
    for node in fault.nodes:
        others = tuple(name for name in names if name != node)
        cuts += [Cut(sources=(node,), destinations=others), Cut(sources=others, destinations=(node,))]
    return Lowered(
        text=f"{', '.join(fault.nodes)} cut off from all others",
        network=NetworkFault(cuts=tuple(cuts)),
        loses=fault.nodes,
    )
