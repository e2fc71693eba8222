"""What is a lossy link? A node that some of the packets to it and from it never reach."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene, require_running
from compose_sim.core.interventions import Fault
from compose_sim.core.links import Link, parse_one
from compose_sim.core.network import NetworkFault


def _share(text: str) -> str:
    parse_one("loss", text)
    return text


SUMMARY = "Lose some of the packets on the links of a node."
ENGINES = ("docker",)
NEEDS = "loss"
OPTIONS: dict[str, Option] = {"rate": (_share, ..., "The share of packets that is lost, such as 5%.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A link of its own for the node, on top of those in force."""
    require_running(fault.nodes, scene)
    share = fault.options["rate"]
    return Lowered(
        text=f"links of {', '.join(fault.nodes)} lose {share} of their packets",
        network=NetworkFault(links=(Link(shape=parse_one("loss", share), nodes=fault.nodes),)),
    )
