"""What is a slow link? A node whose network cable carries less than it did; the node itself is as quick as ever."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene, require_running
from compose_sim.core.interventions import Fault
from compose_sim.core.links import Link, parse_one
from compose_sim.core.network import NetworkFault


def _rate(text: str) -> str:
    parse_one("rate", text)
    return text


SUMMARY = "Give the links of a node little bandwidth."
ENGINES = ("docker",)
NEEDS = "tc"
OPTIONS: dict[str, Option] = {"rate": (_rate, ..., "What each of its links carries, such as 10mbit.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A link of its own for the node, on top of those in force."""
    require_running(fault.nodes, scene)
    shape = parse_one("rate", fault.options["rate"])
    return Lowered(
        text=f"links of {', '.join(fault.nodes)} carry {shape}",
        network=NetworkFault(links=(Link(shape=shape, nodes=fault.nodes),)),
    )
