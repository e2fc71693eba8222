"""Check that a request fits this machine, estimate the memory of ranks, and choose a free subnet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Network, ip_network
from typing import Any
from zlib import crc32

from compose_sim.core.host.host import Host
from compose_sim.core.network.links import check_links
from compose_sim.core.plan.model import NOBODY, REQUESTED, STAND_IN, Choice, Plan
from compose_sim.core.request.spec import ISOLATED, MAX_NODES_ON_A_BRIDGE, ClusterSpec
from compose_sim.core.text import format_bytes, format_count
from compose_sim.errors import EnvironmentMissingError, SpecError

_REACH = {
    "open": "nodes reach other machines, but not the services of this one. For those: --network full",
    "full": "nodes reach whatever this machine can reach, and its services",
}
# Part of 10/8 that home routers, clouds and Docker's own pools rarely use.
_SUBNETS = IPv4Network("10.210.0.0/15")


def check_limits(spec: ClusterSpec, host: Host, *, engine: str, portable: bool) -> None:
    """Raise SpecError if the request does not fit this machine. A rendered file may be for a larger one."""
    _check_links(spec, portable=portable)
    if portable:
        return
    count = len(spec.node_specs)
    if count > MAX_NODES_ON_A_BRIDGE:
        raise SpecError(
            f"{count} nodes are too many: a Linux bridge supports at most {MAX_NODES_ON_A_BRIDGE}",
            hint=f"composesim render --nodes {count} DIR writes the file for a larger machine",
        )
    limits = [node.memory or spec.memory or 0 for node in spec.node_specs]
    if max(limits) > host.memory_bytes:
        raise SpecError(
            f"a node's memory limit of {format_bytes(max(limits))} exceeds this machine's {format_bytes(host.memory_bytes)}",
            hint=f"composesim up --memory {max(1, (host.memory_bytes >> 30) // count)}g …",
        )
    total = count * (spec.scratch or 0)
    if total > host.memory_bytes:
        raise SpecError(
            f"{count} disks of {format_bytes(spec.scratch or 0)} exceed this machine's {format_bytes(host.memory_bytes)} of memory",
            hint=f"composesim up --scratch {max(6, (host.memory_bytes >> 21) // count)}m …",
        )
    least = min((limit for limit in limits if limit), default=None)
    if spec.scratch and least and spec.scratch >= least:
        raise SpecError(
            f"a disk of {format_bytes(spec.scratch)} takes up memory, and does not fit the node's limit of {format_bytes(least)}",
            hint=f"composesim up --scratch {max(6, least >> 22)}m …",
        )
    cpus = max(node.cpus or spec.cpus or 0 for node in spec.node_specs)
    if engine == "docker" and cpus > host.cpus:
        raise SpecError(
            f"a node's {cpus:g} CPUs exceed this machine's {host.cpus}",
            hint=f"composesim up --cpus {host.cpus} …",
        )
    unlimited = (max(limits) and host.docker.memory_bytes is None) or (cpus and host.docker.cpus is None)
    if engine == "docker" and host.docker.rootless and unlimited:
        raise EnvironmentMissingError(
            "this rootless container engine cannot limit the memory or the CPUs of nodes, as with control groups of version 1",
            hint="leave --memory and --cpus out, or use a system with control groups of version 2",
        )


def _check_links(spec: ClusterSpec, *, portable: bool) -> None:
    if spec.link and portable:
        raise SpecError(
            f"--link '{spec.link[0]}' cannot be rendered: composesim shapes links during the run",
            hint="leave --link out, or run the nodes with composesim: composesim up --link …",
        )
    try:
        check_links(spec.link, [f"node-{number}" for number in range(len(spec.node_specs))])
    except ValueError as error:
        raise SpecError(f"--link: {error}", hint="composesim up --nodes N --link …") from None


def with_user_of_nodes(host: Host, *, mapped: Collection[str], hosted: bool) -> Host:
    """Return the host with the user that nodes run as instead of root, if files of root are mapped, or if nodes need an sshd."""
    if host.user_id or not (mapped or hosted):
        return host
    user = STAND_IN if mapped else NOBODY  # an sshd of root needs capabilities that nodes do not have
    return replace(host, user_id=user, group_id=user, user_name="node")


def choose_user(spec: ClusterSpec, host: Host, plan: Plan, *, portable: bool) -> Choice | None:
    """Return the user that nodes in containers run as, if one was requested, or if the nodes must run as root."""
    user = f"{plan.user_name} ({plan.user_ids[0]})"
    if spec.user:
        why = f"{REQUESTED}; nodes write to $COMPOSESIM_SHARED, and to the project if its permissions allow it"
        return Choice(what="user", value=user, why=why)
    if plan.engine != "docker" or plan.user_ids[0] or plan.is_rootless:
        return None
    without = "docker compose makes no such mounts" if portable else "not for nodes with GPUs"
    why = f"files of root cannot be mapped to another user: {host.cannot_map or without}"
    return Choice(what="user", value=user, why=why)


def choose_network(spec: ClusterSpec, *, contained: bool, isolates: bool) -> Choice | None:
    """Return what nodes can reach; None on the local engine, whose nodes use the network of this machine."""
    if not contained:
        return None
    why = REQUESTED if spec.network else "the default of check" if isolates else ""
    network = spec.network or ("isolated" if isolates else "open")
    if network not in ISOLATED:
        return Choice(what="network", value=network, why=f"{why}; {_REACH[network]}") if why else None
    option = f"--with {spec.services[0]}" if spec.services else "--publish" if spec.publish else ""
    if option:
        raise SpecError(
            f"{option} needs a port of this machine, which an isolated network does not have",
            hint="leave it out, or composesim up --network open …",
        )
    why += "; nodes reach only one another. For downloads: --network open"
    return Choice(what="network", value=network, why=why)


def choose_subnet(spec: ClusterSpec, host: Host, *, run: str) -> str:
    """
    Return the requested subnet, or a free one that is large enough for the nodes, the master and the gateway.

    The search begins where the name of the run puts it: runs that start at the same time see the same subnets as free.
    """
    needed = len(spec.node_specs) + 4  # network, gateway, broadcast, master
    taken = [IPv4Network(text) for text in (*host.docker.used_subnets, *host.host_subnets)]
    if spec.subnet:
        wanted = IPv4Network(spec.subnet)
        clash = next((network for network in taken if network.overlaps(wanted)), None)
        if clash:
            raise SpecError(
                f"subnet '{wanted}' overlaps '{clash}', which this machine uses",
                hint="leave --subnet out to get a free one; docker network ls shows those in use",
            )
        if wanted.num_addresses < needed:
            raise SpecError(f"subnet '{wanted}' has {wanted.num_addresses} addresses; this run needs {needed}")
        return str(wanted)
    prefix = min(24, 32 - (needed - 1).bit_length())
    candidates = list(_SUBNETS.subnets(new_prefix=prefix))
    first = crc32(run.encode()) % len(candidates)
    for candidate in candidates[first:] + candidates[:first]:
        if not any(network.overlaps(candidate) for network in taken):
            return str(ip_network(candidate))
    raise SpecError(
        f"there is no free /{prefix} subnet in {_SUBNETS}",
        hint="composesim prune --everywhere, or choose one: composesim up --subnet 172.30.0.0/24 …",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The estimated peak of one rank, in bytes."""

    process: int  # Python, torch, and what the script loads
    parameters: int
    gradients: int
    optimizer: int
    activations: int  # with temporary tensors
    buckets: int  # of DDP, in which gradients are reduced

    @property
    def total(self) -> int:
        """Return the sum: the peak that a node sees per rank, without what allocators hold back."""
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMemory:
    """What the ranks of a node are estimated to need, and what the node has; None without a limit."""

    node: str
    ranks: int
    needs: int
    limit: int | None

    @property
    def fits(self) -> bool:
        """Return whether the ranks fit."""
        return self.limit is None or self.needs <= self.limit


def rank_memory(result: Mapping[str, Any]) -> RankMemory:
    """Return what `node/planning/memory_estimate.py` printed."""
    peak: Mapping[str, int] = result["peak"]
    return RankMemory(
        process=result["process"],
        parameters=peak.get("param", 0) + peak.get("buffer", 0),
        gradients=peak.get("grad", 0),
        optimizer=peak.get("opt", 0),
        activations=peak.get("act", 0) + peak.get("temp", 0) + peak.get("oth", 0),
        buckets=result["buckets"],
    )


def memory_of_nodes(plan: Plan, rank: RankMemory, *, machine_bytes: int | None) -> tuple[NodeMemory, ...]:
    """Return the estimate of each node; one without a limit has the memory of the machine."""
    return tuple(
        NodeMemory(
            node=node.name,
            ranks=node.nproc,
            needs=node.nproc * rank.total,
            limit=node.memory_bytes or plan.default_memory_bytes or machine_bytes,
        )
        for node in plan.initial_nodes
    )


def memory_lines(rank: RankMemory, nodes: tuple[NodeMemory, ...]) -> Iterator[str]:
    """Yield the estimate in words."""
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in asdict(rank).items())
    yield f"memory    about {format_bytes(rank.total)} per rank ({parts})"
    for node in nodes:
        if not node.fits and node.limit is not None:
            ranks = format_count(node.ranks, "rank")
            has = format_bytes(node.limit)
            yield f"memory    {node.node} needs {format_bytes(node.needs)} for {ranks}, more than its {has}"
