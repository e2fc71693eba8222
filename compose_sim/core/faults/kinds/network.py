"""Define faults of the network: partitions, isolated nodes, and links that are slow, lossy or long."""

from __future__ import annotations

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import Effect, FaultKind, FaultOption, RunSnapshot, require_running
from compose_sim.core.network.links import Link, parse_one
from compose_sim.core.network.node_network import MASTER, Cut, NetworkFault
from compose_sim.errors import SpecError


def _partition(fault: Fault, run: RunSnapshot) -> Effect:
    """Cut the two groups off from each other, and the second one from the master."""
    groups = [tuple(group) for group in fault.options["groups"]]
    if len(groups) != 2 or not all(groups):
        raise SpecError(
            f"a partition needs two groups of nodes, but {len(groups)} were given",
            hint="composesim fault partition node-0,node-1 node-2,node-3",
        )
    both = [node for node in groups[0] if node in groups[1]]
    if both:
        raise SpecError(f"'{both[0]}' cannot be on both sides of a partition")
    first, second = groups
    one_way, keep_master = fault.options["one_way"], fault.options["keep_master"]
    require_running((*first, *second), run)
    near = first if keep_master else (*first, MASTER)
    cuts = [Cut(sources=near, destinations=second)]
    if not one_way:
        cuts.append(Cut(sources=second, destinations=near))
    sides = ", ".join(first), ", ".join(second)
    return Effect(
        fault=fault,
        text="{} cannot reach {}".format(*sides) if one_way else "{} and {} cannot reach each other".format(*sides),
        network=NetworkFault(cuts=tuple(cuts)),
        loses=() if keep_master else second,
    )


def _isolate(fault: Fault, run: RunSnapshot) -> Effect:
    """Cut each node off in both directions."""
    require_running(fault.nodes, run)
    names = (MASTER, *(node.name for node in run.plan.nodes))
    cuts = []
    for node in fault.nodes:
        others = tuple(name for name in names if name != node)
        cuts += [Cut(sources=(node,), destinations=others), Cut(sources=others, destinations=(node,))]
    text = f"{', '.join(fault.nodes)} isolated from all others"
    return Effect(fault=fault, text=text, network=NetworkFault(cuts=tuple(cuts)), loses=fault.nodes)


def _shaped(
    name: str, summary: str, text: str, *, needs: str, quality: str, option: str, metavar: str, help: str
) -> FaultKind:
    """Return a kind that changes one quality (rate, delay, loss) of a node's links, on top of the links in force."""

    def effect(fault: Fault, run: RunSnapshot) -> Effect:
        require_running(fault.nodes, run)
        amount = fault.options[option]
        link = Link(shape=parse_one(quality, amount), nodes=fault.nodes)
        meant = text.format(nodes=", ".join(fault.nodes), amount=amount)
        return Effect(fault=fault, text=meant, network=NetworkFault(links=(link,)))

    def parse(given: str) -> str:
        parse_one(quality, given)
        return given

    options = {option: FaultOption(parse=parse, metavar=metavar, help=help)}
    return FaultKind(name=name, summary=summary, effect=effect, engines=("docker",), needs=needs, options=options)


KINDS = (
    FaultKind(
        name="partition",
        summary="Drop all packets between two groups of nodes; the first keeps the master.",
        effect=_partition,
        target="groups",
        engines=("docker",),
        needs="netfilter",
        options={
            "one_way": FaultOption(default=False, help="Drop only what the first group sends."),
            "keep_master": FaultOption(
                default=False, help="Keep both groups connected to the master, so that no node counts as lost."
            ),
        },
    ),
    FaultKind(
        name="isolate",
        summary="Cut a node off from all others and from the master, as when its cable is pulled.",
        effect=_isolate,
        engines=("docker",),
        needs="netfilter",
    ),
    _shaped(
        "slow-link",
        "Limit the bandwidth of a node's links.",
        "links of {nodes} limited to {amount}",
        needs="tc",
        quality="rate",
        option="rate",
        metavar="RATE",
        help="Bandwidth of each link, such as 10mbit.",
    ),
    _shaped(
        "loss",
        "Drop a share of the packets on a node's links.",
        "links of {nodes} lose {amount} of their packets",
        needs="loss",
        quality="loss",
        option="rate",
        metavar="PERCENT",
        help="Share of packets to drop, such as 5%.",
    ),
    _shaped(
        "delay",
        "Delay the packets to and from a node.",
        "packets of {nodes} delayed by {amount}",
        needs="netem",
        quality="delay",
        option="time",
        metavar="TIME",
        help="One-way delay of each packet, such as 20ms.",
    ),
)
