"""What is a lossy link? A node that some of the packets to it and from it never reach."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.link_faults import amount_of, shaped

SUMMARY = "Lose some of the packets on the links of a node."
ENGINES = ("docker",)
NEEDS = "loss"
OPTIONS: dict[str, Option] = {"rate": amount_of("loss", "The share of packets that is lost, such as 5%.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A link of its own for the node, on top of those in force."""
    return shaped(
        fault, scene, quality="loss", much=fault.options["rate"], how="links of {nodes} lose {much} of their packets"
    )
