"""What is a slow link? A node whose network cable carries less than it did; the node itself is as quick as ever."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.link_faults import amount_of, shaped

SUMMARY = "Give the links of a node little bandwidth."
ENGINES = ("docker",)
NEEDS = "tc"
OPTIONS: dict[str, Option] = {"rate": amount_of("rate", "What each of its links carries, such as 10mbit.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A link of its own for the node, on top of those in force."""
    return shaped(fault, scene, quality="rate", much=fault.options["rate"], how="links of {nodes} carry {much}")
