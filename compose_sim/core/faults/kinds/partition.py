"""What is a partition? Two groups of nodes between which no packet passes; the master is on the first group's side."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene, require_running
from compose_sim.core.faults.commands import Fault
from compose_sim.core.network.node_network import MASTER, Cut, NetworkFault
from compose_sim.errors import SpecError

SUMMARY = "Let no packet pass between two groups of nodes; the first keeps the master."
ENGINES = ("docker",)
NEEDS = "netfilter"
TARGET = "groups"
OPTIONS: dict[str, Option] = {
    "one_way": (bool, False, "Only what the first group sends is lost."),
    "keep_master": (bool, False, "Both groups go on hearing the master: no node counts as lost."),
}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """Cuts between the groups, and between the second one and the master."""
    groups = [tuple(group) for group in fault.options["groups"]]
    if len(groups) != 2 or not all(groups):
        raise SpecError(
            f"a partition is between two groups of nodes, and {len(groups)} were named",
            hint="composesim fault partition node-0,node-1 node-2,node-3",
        )
    both = [node for node in groups[0] if node in groups[1]]
    if both:
        raise SpecError(f"'{both[0]}' cannot be on both sides of a partition")
    first, second = groups
    require_running((*first, *second), scene)
    near = first if fault.options["keep_master"] else (*first, MASTER)
    cuts = [Cut(sources=near, destinations=second)]
    if not fault.options["one_way"]:
        cuts.append(Cut(sources=second, destinations=near))
    verb = "cannot reach" if fault.options["one_way"] else "and"
    text = f"{', '.join(first)} {verb} {', '.join(second)}"
    return Lowered(
        text=text if fault.options["one_way"] else f"{text} cannot reach each other",
        network=NetworkFault(cuts=tuple(cuts)),
        loses=() if fault.options["keep_master"] else second,
    )
