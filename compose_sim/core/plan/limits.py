"""Does the request fit: the bridge's ports, this machine's memory, a subnet that nobody has?"""

from __future__ import annotations

from ipaddress import IPv4Network, ip_network

from compose_sim.core.host.host import Host
from compose_sim.core.network.links import check_links
from compose_sim.core.request.spec import MAX_NODES_ON_A_BRIDGE, ClusterSpec
from compose_sim.core.units import format_bytes
from compose_sim.errors import SpecError

# Where runs take their subnets from: a corner of 10/8 that home routers, clouds and Docker's own pools rarely use.
_SUBNETS = IPv4Network("10.210.0.0/15")


def check_limits(spec: ClusterSpec, host: Host, *, engine: str, portable: bool) -> None:
    """SpecError where one machine cannot hold what was asked for. A rendered file may be for a larger machine."""
    _check_links(spec, portable=portable)
    if portable:
        return
    count = len(spec.node_specs)
    if count > MAX_NODES_ON_A_BRIDGE:
        raise SpecError(
            f"{count} nodes are too many: one Linux bridge holds at most {MAX_NODES_ON_A_BRIDGE}",
            hint=f"composesim render --nodes {count} DIR writes the file without a limit",
        )
    limits = [node.memory or spec.memory or 0 for node in spec.node_specs]
    if max(limits) > host.memory_bytes:
        raise SpecError(
            f"a node's memory of {format_bytes(max(limits))} is more than this machine's {format_bytes(host.memory_bytes)}",
            hint=f"composesim up --memory {max(1, (host.memory_bytes >> 30) // count)}g …",
        )
    total = count * (spec.scratch or 0)
    if total > host.memory_bytes:
        raise SpecError(
            f"{count} disks of {format_bytes(spec.scratch or 0)} lie in memory: this machine has {format_bytes(host.memory_bytes)}",
            hint=f"composesim up --scratch {max(6, (host.memory_bytes >> 21) // count)}m …",
        )
    least = min((limit for limit in limits if limit), default=None)
    if spec.scratch and least and spec.scratch >= least:
        raise SpecError(
            f"a disk of {format_bytes(spec.scratch)} does not fit in a node's memory of {format_bytes(least)}, in which it lies",
            hint=f"composesim up --scratch {max(6, least >> 22)}m …",
        )
    cpus = max(node.cpus or spec.cpus or 0 for node in spec.node_specs)
    if engine == "docker" and cpus > host.cpus:
        raise SpecError(
            f"a node's {cpus:g} CPUs are more than this machine's {host.cpus}",
            hint=f"composesim up --cpus {host.cpus} …",
        )


def _check_links(spec: ClusterSpec, *, portable: bool) -> None:
    if spec.link and portable:
        raise SpecError(
            f"the link '{spec.link[0]}' cannot be rendered: composesim shapes links while it runs nodes",
            hint="leave --link out, or let composesim run them: composesim up --link …",
        )
    try:
        check_links(spec.link, [f"node-{number}" for number in range(len(spec.node_specs))])
    except ValueError as error:
        raise SpecError(f"--link: {error}", hint="composesim up --nodes N --link …") from None


def choose_subnet(spec: ClusterSpec, host: Host) -> str:
    """The asked-for subnet, or the first free one that is large enough for the nodes, the master and the gateway."""
    needed = len(spec.node_specs) + 4  # network, gateway, broadcast, master
    taken = [IPv4Network(text) for text in (*host.docker.used_subnets, *host.host_subnets)]
    if spec.subnet:
        wanted = IPv4Network(spec.subnet)
        clash = next((network for network in taken if network.overlaps(wanted)), None)
        if clash:
            raise SpecError(
                f"subnet '{wanted}' overlaps '{clash}', which is in use on this machine",
                hint="leave --subnet out and a free one is chosen, or see: docker network ls",
            )
        if wanted.num_addresses < needed:
            raise SpecError(f"subnet '{wanted}' has {wanted.num_addresses} addresses; this run needs {needed}")
        return str(wanted)
    prefix = min(24, 32 - (needed - 1).bit_length())
    for candidate in _SUBNETS.subnets(new_prefix=prefix):
        if not any(network.overlaps(candidate) for network in taken):
            return str(ip_network(candidate))
    raise SpecError(
        f"no free /{prefix} subnet is left in {_SUBNETS}",
        hint="composesim prune removes what crashed runs left, or name one: --subnet 172.30.0.0/24",
    )
