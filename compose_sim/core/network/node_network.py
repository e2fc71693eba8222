"""Decide what the network of one node must be like, given the links and the active faults.

The result is always the whole state, never a change. So applying it twice has no further effect, and a fault is healed by
deciding again without the fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compose_sim.core.network.links import PLAIN, Link, Shape, shape_between, worst

MASTER = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """No packet from any of the sources reaches any of the destinations; nodes by name, or `master`."""

    sources: tuple[str, ...]
    destinations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFault:
    """What a fault adds to the network while it is active."""

    cuts: tuple[Cut, ...] = ()
    links: tuple[Link, ...] = ()  # on top of the current links: the worst of both applies


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """The network of one node, as seen from the node: outgoing packets are shaped, incoming ones may be dropped."""

    node: str
    shapes: tuple[tuple[Shape, tuple[str, ...]], ...] = field(
        default=()
    )  # neighbors that share one shape and one bandwidth
    deaf_to: tuple[str, ...] = ()  # whose packets are dropped on arrival
    mute_to: tuple[str, ...] = ()  # to which no packet is sent

    @property
    def is_plain(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.shapes or self.deaf_to or self.mute_to)


def decide_network(
    node: str, nodes: Sequence[str], links: Sequence[Link], faults: Sequence[NetworkFault]
) -> NodeNetwork:
    """
    Return the network of one node.

    The network of the master itself is never changed, so packets that must not reach the master are dropped on the node.
    """
    shapes: dict[Shape, list[str]] = {}
    for other in nodes:
        if other != node:
            of_faults = [shape_between(fault.links, node, other) for fault in faults]
            shape = worst((shape_between(links, node, other), *of_faults))
            shapes.setdefault(shape, []).append(other)
    shapes.pop(PLAIN, None)
    cuts = [cut for fault in faults for cut in fault.cuts]
    unheard = {source for cut in cuts if node in cut.destinations for source in cut.sources if source != node}
    is_cut_off = any(node in cut.sources and MASTER in cut.destinations for cut in cuts)
    return NodeNetwork(
        node=node,
        shapes=tuple((shape, tuple(others)) for shape, others in shapes.items()),
        deaf_to=tuple(other for other in (MASTER, *nodes) if other in unheard),
        mute_to=(MASTER,) if is_cut_off else (),
    )
