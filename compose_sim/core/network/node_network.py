"""What must the network of one node be like, given the links and the faults in force? Decided here and nowhere else.

It is always the whole state, never a change: applying it twice is applying it once, and a fault is healed by deciding again
without it.
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
    """What a fault adds to the network while it is in force."""

    cuts: tuple[Cut, ...] = ()
    links: tuple[Link, ...] = ()  # on top of the links in force: the worst of both holds


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """The network of one node, as its own side of it must be: what leaves is shaped, what arrives may be dropped."""

    node: str
    shapes: tuple[tuple[Shape, tuple[str, ...]], ...] = field(
        default=()
    )  # neighbours that share one shape, one bandwidth
    deaf_to: tuple[str, ...] = ()  # whose packets are dropped where they arrive
    mute_to: tuple[str, ...] = ()  # to whom no packet leaves

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.shapes or self.deaf_to or self.mute_to)


def decide_network(
    node: str, nodes: Sequence[str], links: Sequence[Link], faults: Sequence[NetworkFault]
) -> NodeNetwork:
    """
    The network of one of the nodes.

    Nothing is ever done in the master's own network, so what it must not hear does not leave the node.
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
