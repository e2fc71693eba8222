"""How is a fault of the links of nodes lowered? To a link of their own, on top of those in force."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene, require_running
from compose_sim.core.faults.commands import Fault
from compose_sim.core.network.links import Link, parse_one
from compose_sim.core.network.node_network import NetworkFault


def amount_of(quality: str, text: str) -> Option:
    """An option that cannot be left out: how much there is of one quality of a link (rate, delay, loss)."""

    def read(given: str) -> str:
        parse_one(quality, given)
        return given

    return read, ..., text


def shaped(fault: Fault, scene: Scene, *, quality: str, much: str, how: str) -> Lowered:
    """While it lasts, the links of its nodes have so much of a quality; `how` says it of {nodes} and of {much}."""
    require_running(fault.nodes, scene)
    link = Link(shape=parse_one(quality, much), nodes=fault.nodes)
    return Lowered(text=how.format(nodes=", ".join(fault.nodes), much=much), network=NetworkFault(links=(link,)))
