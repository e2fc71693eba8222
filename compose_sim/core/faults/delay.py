"""What is a distant node? One whose packets take longer, both to it and from it."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene, require_running
from compose_sim.core.interventions import Fault
from compose_sim.core.links import Link, parse_one
from compose_sim.core.network import NetworkFault


def _time(text: str) -> str:
    parse_one("delay", text)
    return text


SUMMARY = "Let packets to and from a node take longer."
ENGINES = ("docker",)
NEEDS = "netem"
OPTIONS: dict[str, Option] = {"time": (_time, ..., "How long each packet takes, one way, such as 20ms.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A link of its own for the node, on top of those in force."""
    require_running(fault.nodes, scene)
    shape = parse_one("delay", fault.options["time"])
    return Lowered(
        text=f"packets of {', '.join(fault.nodes)} take {shape}",
        network=NetworkFault(links=(Link(shape=shape, nodes=fault.nodes),)),
    )
