"""Decide what the network of one node must be like, given the links and the active faults, and render the script that shapes it.

The result is always the whole state, never a change. So applying it twice has no further effect, and a fault is healed by
deciding again without the fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from math import ceil

from compose_sim.core.network.links import PLAIN, Link, Shape, parse_link, shape_between, worst
from compose_sim.errors import EnvironmentMissingError

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
    # Neighbors that share one shape and one bandwidth.
    shapes: tuple[tuple[Shape, tuple[str, ...]], ...] = field(default=())
    deaf_to: tuple[str, ...] = ()  # whose packets are dropped on arrival
    mute_to: tuple[str, ...] = ()  # to which no packet is sent
    subnet: str = ""  # whose addresses are reached through its gateway, the only neighbor; "" if directly

    @property
    def is_plain(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.shapes or self.deaf_to or self.mute_to or self.subnet)


def decide_network(
    node: str, nodes: Sequence[str], links: Sequence[Link], faults: Sequence[NetworkFault], *, routed: str = ""
) -> NodeNetwork:
    """
    Return the network of one node; `routed` is the subnet of the nodes if their packets go through the gateway.

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
        subnet=routed,
    )


INTERFACE = "eth0"  # the name that Docker uses in a container on one network
# Up to this rate packets are sent one by one: 64 KiB at once would be a burst of 5 ms and more.
_ONE_BY_ONE_BITS = 10**8
_ANY_RATE_BITS = 10**11  # for a class that only delays
_PACKET_BYTES = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What this machine can do to packets, found by trying; the names are those of kernel modules and programs."""

    tc: bool  # the program
    htb: bool  # a rate for each group of neighbors
    tbf: bool  # one rate for all outgoing packets
    netem: bool  # delay and jitter
    iptables: str  # the program that restores a table, "" if none works
    statistic: bool  # loss by the packet filter
    said: Mapping[str, str]  # the error message of each missing part


def check_means(links: Iterable[str], faults: Sequence[NetworkFault], means: Means, *, routed: bool = False) -> None:
    """Raise EnvironmentMissingError if links, faults or routes need a part that this machine lacks; name the part and the fix."""
    for part in ("tc", "iptables") if routed else ():
        if not getattr(means, part):
            raise _missing("so many nodes reach one another through the gateway", part, means, "fewer nodes")
    for text in (*links, *(str(link) for fault in faults for link in fault.links)):
        link = parse_link(text)
        shape = link.shape
        if shape.delay_us and not (means.netem and means.htb):
            without = replace(link, shape=replace(shape, delay_us=0, jitter_us=0))
            way_out = "" if without.shape == PLAIN else f"leave the delay out: {without}"
            raise _missing(f"the link '{text}' asks for a delay", "netem", means, way_out)
        if shape.rate_bits and not (means.htb or (means.tbf and not link.nodes)):
            raise _missing(f"the link '{text}' asks for a bandwidth", "htb", means, "")
        if shape.loss_ppm and not (means.statistic or (means.netem and means.htb)):
            raise _missing(f"the link '{text}' asks for loss", "statistic", means, "")
    if any(fault.cuts for fault in faults) and not means.iptables:
        raise _missing("a partition drops packets", "iptables", means, "")


# Each line of output is a part that works, or `no PART` and the error message. It runs in a separate network namespace.
PROBE = """
try() { part=$1; shift; if said=$("$@" 2>&1); then echo "$part"; else echo "no $part $(echo "$said" | tail -n 1)"; fi; }
rate() { tc qdisc add dev lo root handle 1: htb && tc class add dev lo parent 1: classid 1:1 htb rate 1mbit &&
  tc filter add dev lo parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.1/32 flowid 1:1; }
rule() { printf '*filter\\n:INPUT ACCEPT [0:0]\\n-A INPUT -s 10.0.0.1/32 %s -j DROP\\nCOMMIT\\n' "$2" | "$1"; }
try tc tc -Version
try htb rate
tc qdisc del dev lo root 2>/dev/null
try tbf tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 50ms
tc qdisc del dev lo root 2>/dev/null
try netem tc qdisc add dev lo root netem delay 1ms
said="iptables is not installed"
for each in iptables-nft-restore iptables-legacy-restore iptables-restore; do
  command -v "$each" >/dev/null || continue
  try statistic rule "$each" "-m statistic --mode random --probability 0.5"
  if said=$(rule "$each" "" 2>&1); then echo "iptables $each"; exit; fi
done
echo "no iptables $said"
"""


def means_found(printed: str) -> Means:
    """Parse the output of `PROBE`."""
    found: dict[str, str] = {}
    said: dict[str, str] = {}
    for line in printed.splitlines():
        part, _, rest = line.partition(" ")
        if part == "no":
            said.setdefault(*rest.partition(" ")[::2])
        else:
            found[part] = rest
    parts = {part: part in found for part in ("tc", "htb", "tbf", "netem", "statistic")}
    return Means(**parts, iptables=found.get("iptables", ""), said=said)


_FIXES = {
    "netem": "sudo modprobe sch_netem, or apt-get install linux-modules-extra-$(uname -r)",
    "htb": "sudo modprobe sch_htb cls_u32, or apt-get install linux-modules-extra-$(uname -r)",
    "statistic": "sudo modprobe xt_statistic, or apt-get install linux-modules-extra-$(uname -r)",
    "tc": "apt-get install iproute2",
    "iptables": "apt-get install iptables",
}
_WORDS = {
    "netem": "this kernel cannot delay packets: it has no netem",
    "htb": "this kernel has no HTB with u32 filters",
    "statistic": "the packet filter here has no 'statistic' match",
    "tc": "no tc here works",
    "iptables": "no iptables here can load a rule",
}


def _missing(wish: str, part: str, means: Means, way_out: str) -> EnvironmentMissingError:
    part = _first_missing(part, means)
    return EnvironmentMissingError(
        f"{wish}, and {_WORDS[part]}",
        evidence=means.said.get(part, ""),
        hint="; or ".join(filter(None, (_FIXES[part], way_out))),
    )


def _first_missing(part: str, means: Means) -> str:
    """Return what to fix first: a part of the kernel cannot be detected without the program that uses it."""
    if part in ("netem", "htb") and not means.tc:
        return "tc"
    return "iptables" if part == "statistic" and not means.iptables else part


def lacking(part: str, means: Means) -> str:
    """Return why a fault that needs this part (`tc`, `netem`, `netfilter`, `loss`) is not possible here; "" if it is."""
    has = {"tc": means.htb, "netem": means.netem and means.htb, "netfilter": means.iptables, "loss": means.statistic}
    named = {"tc": "htb", "netem": "netem", "netfilter": "iptables", "loss": "statistic"}[part]
    return "" if has[part] else _WORDS[_first_missing(named, means)]


def render_script(network: NodeNetwork, addresses: Mapping[str, str], means: Means) -> str:
    """
    Return a shell script that sets up the network of a node from any state.

    `addresses` are the IPv4 addresses of nodes and of `master`; nodes without one are not running, and are left out.
    """
    lines = ["set -e", *(_routes(network.subnet) if network.subnet else ())]
    if means.iptables:
        lines += [f"{means.iptables} <<'END'", *_filter_table(network, addresses, means), "END"]
    if means.tc:
        lines += [f"tc qdisc del dev {INTERFACE} root 2>/dev/null || :", *_packets(network)]
    batch = _queues(network, addresses, means)
    if batch:
        lines += ["tc -batch - <<'END'", *batch, "END"]
    return "\n".join(lines) + "\n"


def _routes(subnet: str) -> list[str]:
    """Return commands that send packets for the subnet to its gateway, which is its first address."""
    gateway = next(ip_network(subnet).hosts())
    return [
        f"ip route replace {gateway}/32 dev {INTERFACE} scope link",
        f"ip route replace {subnet} via {gateway} dev {INTERFACE} metric 1",
        f"ip route del {subnet} dev {INTERFACE} proto kernel scope link 2>/dev/null || :",
    ]


def _filter_table(network: NodeNetwork, addresses: Mapping[str, str], means: Means) -> list[str]:
    """Return the whole filter table, which belongs to this node alone and is loaded at once."""
    rules = [f"-A INPUT -s {addresses[other]}/32 -j DROP" for other in network.deaf_to if other in addresses]
    rules += [f"-A OUTPUT -d {addresses[other]}/32 -j DROP" for other in network.mute_to if other in addresses]
    for shape, others in network.shapes if means.statistic else ():
        match = f"-m statistic --mode random --probability {shape.loss_ppm / 10**6:.6f}"
        rules += [
            f"-A INPUT -s {addresses[other]}/32 {match} -j DROP"
            for other in others
            if shape.loss_ppm and other in addresses
        ]
    if network.subnet:  # the gateway would tell each node of a shorter way
        rules.append("-A INPUT -p icmp --icmp-type redirect -j DROP")
    chains = [f":{chain} ACCEPT [0:0]" for chain in ("INPUT", "FORWARD", "OUTPUT")]
    return ["*filter", *chains, *rules, "COMMIT"]


def _packets(network: NodeNetwork) -> list[str]:
    """
    Return commands that limit the size of packets, and how many of them the kernel passes to the link as one.

    The size is set on routes, so that open connections follow it and the node still receives larger packets. An old `ip` lacks some
    of this.
    """
    slowest = min((shape.rate_bits for shape, _ in network.shapes if shape.rate_bits), default=_ANY_RATE_BITS)
    most = 1 if slowest <= _ONE_BY_ONE_BITS else 65535
    size = f" mtu {_PACKET_BYTES}" if network.shapes else ""
    routes = f"ip route show dev {INTERFACE} | sed 's/ mtu [0-9]*//'"
    change = f"ip route change $route dev {INTERFACE}{size} 2>/dev/null || :"
    return [
        f"ip link set dev {INTERFACE} gso_max_segs {most} 2>/dev/null || :",
        f"{routes} | while read -r route; do {change}; done",
    ]


def _queues(network: NodeNetwork, addresses: Mapping[str, str], means: Means) -> list[str]:
    """Return lines for `tc -batch`: a class for each group of neighbors; other traffic is unaffected."""
    shaped = [(shape, others) for shape, others in network.shapes if _needs_queue(shape, means)]
    if not shaped:
        return []
    if not means.htb:
        rate = shaped[0][0].rate_bits or _ANY_RATE_BITS
        return [f"qdisc add dev {INTERFACE} root tbf rate {rate}bit burst {max(_burst(rate), 65536)}b latency 100ms"]
    lines = [f"qdisc add dev {INTERFACE} root handle 1: htb"]
    for number, (shape, others) in enumerate(shaped, 1):
        rate = shape.rate_bits or _ANY_RATE_BITS
        burst = f"burst {_burst(rate)}b cburst {_burst(rate)}b quantum 60000"
        lines.append(f"class add dev {INTERFACE} parent 1: classid 1:{number:x} htb rate {rate}bit {burst}")
        if netem := _netem(shape, means):
            lines.append(f"qdisc add dev {INTERFACE} parent 1:{number:x} handle {number + 1:x}: netem {netem}")
        lines += [
            f"filter add dev {INTERFACE} parent 1: protocol ip prio 1 u32 match ip dst {addresses[other]}/32 flowid 1:{number:x}"
            for other in others
            if other in addresses
        ]
    return lines


def _needs_queue(shape: Shape, means: Means) -> bool:
    return bool(shape.rate_bits or shape.delay_us or (shape.loss_ppm and not means.statistic))


def _burst(rate_bits: int) -> int:
    """Return how many bytes may leave at once: what is sent in a millisecond, so that a late timer costs no bandwidth."""
    return max(16384, rate_bits // 8 // 1000)


def _netem(shape: Shape, means: Means) -> str:
    """Return the arguments of `netem`; it only drops packets if the packet filter cannot, which is closer to a real link."""
    words = [f"delay {shape.delay_us}us {shape.jitter_us}us"] if shape.delay_us else []
    words += [f"loss {shape.loss_ppm / 10**4:.4f}%"] if shape.loss_ppm and not means.statistic else []
    seconds = (shape.delay_us + shape.jitter_us) / 10**6
    in_flight = ceil((shape.rate_bits or 10**10) * seconds / 8 / _PACKET_BYTES)
    return " ".join([*words, f"limit {1000 + 2 * in_flight}"]) if words else ""
