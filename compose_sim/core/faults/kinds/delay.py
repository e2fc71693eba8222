"""What is a distant node? One whose packets take longer, both to it and from it."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.link_faults import amount_of, shaped

SUMMARY = "Let packets to and from a node take longer."
ENGINES = ("docker",)
NEEDS = "netem"
OPTIONS: dict[str, Option] = {"time": amount_of("delay", "How long each packet takes, one way, such as 20ms.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A link of its own for the node, on top of those in force."""
    return shaped(fault, scene, quality="delay", much=fault.options["time"], how="packets of {nodes} take {much}")
