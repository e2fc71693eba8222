"""Choose the size of a cluster and the limits of nodes if the user did not, from the room on this machine.

`doctor` prints the same numbers. They were measured with an empty script, torch 2.13 for the CPU and Docker 26 (docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import Choice, Plan
from compose_sim.core.request.field_types import TORCH_NODE_BYTES, TORCH_RANK_BYTES
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.text import format_bytes, format_count
from compose_sim.errors import SpecError

RANK_BYTES = 300 << 20  # of a rank with torch and a small model
RUN_BYTES = 1 << 30  # of disk, for a run with logs and checkpoints
_MIB = 1 << 20
# The least that a rank needs: one that is forked from a process with torch shares most of its memory, others import torch.
_MIN_RANK_BYTES = {"warm": 35 * _MIB, "command": 8 * _MIB}
_IMPORT_BYTES, _CUDA_IMPORT_BYTES = 140 * _MIB, 280 * _MIB  # of torch for the CPU and of torch for CUDA
_MIN_NODE_BYTES = {"docker": 40 * _MIB, "local": 20 * _MIB}
_MIN_DISK_BYTES, _DISK_BYTES_PER_NODE = 8 * _MIB, 64 << 10
_RANK_PROCESSES = {"command": 1}  # a program that may start no thread; one with torch starts some
_TORCH_PROCESSES = 5
_NODE_PROCESSES = {"docker": 20, "local": 2}  # Docker runs a program for each container
_MAX_RESERVED_BYTES = 1 << 30
_ROUTED_NEIGHBORS = 3  # for each node: its gateway, itself on the gateway, and itself on the master
LAZY_GLOO = "TORCH_GLOO_LAZY_INIT"  # torch 2.13 has no other name for it


def room_for_ranks(free_bytes: int) -> int:
    """Return how many ranks with a small model fit into memory."""
    return free_bytes // RANK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shortage:
    """A resource of which even the smallest script would need more than there is."""

    needs: str
    has: str
    nodes: int  # the largest number for which there is enough
    fix: str = ""  # a command that makes room


def check_capacity(spec: ClusterSpec, host: Host, *, engine: str, launcher: str, backend: str) -> tuple[Choice, ...]:
    """
    Return a Choice for each resource that may become scarce.

    Raises SpecError if the nodes cannot all run on this machine, with the largest number that can, unless the spec has `force`.
    """
    ranks = [node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs][: spec.initial_node_count]
    if engine == "local":
        host = _within_own_limits(host)
    if engine == "docker" and launcher == "warm" and not spec.force:
        _refuse_small_limits(spec)
    found = _shortages(ranks, host, engine=engine, launcher=launcher)
    if engine == "docker" and spec.recipe == "ddp" and backend == "gloo" and launcher != "env":
        found += _too_many_neighbors(len(ranks), host)
    lazy = _connections(len(ranks), host) if connects_lazily(spec, host, engine=engine, backend=backend) else ()
    if not found:
        return (*lazy, *_warnings(spec, host, ranks))
    worst = min(found, key=lambda shortage: shortage.nodes)
    cluster = f"{format_count(len(ranks), 'node')} with {format_count(sum(ranks), 'rank')}"
    problem = f"{cluster} need at least {worst.needs}; this machine has {worst.has}"
    if spec.force:
        return (Choice(what="capacity", value="exceeded", why=f"--force: {problem}"),)
    fewer = f"composesim up --nodes {worst.nodes} … is the largest number that fits" if worst.nodes else "free some"
    hints = [worst.fix, fewer, "--force starts them nevertheless", "composesim doctor"]
    raise SpecError(problem, hint="; ".join(filter(None, hints)))


def _within_own_limits(host: Host) -> Host:
    """Return the host as plain processes see it, for which the limits of the caller hold."""
    memory = (host.free_memory_bytes, host.own_free_memory_bytes)
    processes = (host.free_process_ids, host.own_free_process_ids)
    return replace(host, free_memory_bytes=_least(memory), free_process_ids=_least(processes))


def _least(numbers: Iterable[int | None]) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _refuse_small_limits(spec: ClusterSpec) -> None:
    """Raise SpecError if a node's limit is below what its agent and ranks take: the kernel would kill it before the first step."""
    for number, node in enumerate(spec.node_specs):
        ranks, limit = node.nproc_per_node or spec.nproc_per_node, node.memory or spec.memory
        least = TORCH_NODE_BYTES + TORCH_RANK_BYTES * ranks
        if limit and limit < least:
            needs = f"torch and DDP take {format_bytes(least)} with {format_count(ranks, 'rank')}"
            raise SpecError(
                f"a memory limit of {format_bytes(limit)} is too small for node-{number}: {needs}",
                hint=f"composesim up --memory {least // _MIB}m …; --force starts the nodes nevertheless",
            )


def default_memory_bytes(host: Host) -> int | None:
    """
    Return the memory limit of a container without one: what is available, less a reserve that keeps this machine usable.

    It is at least half of all memory, because file system caches may give way to nodes though they do not count as available.
    """
    total, free = host.docker.memory_bytes, host.free_memory_bytes
    if not (total and free):
        return None
    return max(min(free, total) - min(free // 8, _MAX_RESERVED_BYTES), total // 2)


def _shortages(ranks: list[int], host: Host, *, engine: str, launcher: str) -> list[_Shortage]:
    import_bytes = _CUDA_IMPORT_BYTES if host.python and host.python.torch_cuda else _IMPORT_BYTES
    rank_bytes = _MIN_RANK_BYTES.get(launcher, import_bytes)
    # Ranks are forked from a process with torch: each container has its own, plain processes share one.
    server_bytes = import_bytes if engine == "docker" and launcher == "warm" else 0
    memory = [_MIN_NODE_BYTES[engine] + server_bytes + rank_bytes * count for count in ranks]
    rank_processes = _RANK_PROCESSES.get(launcher, _TORCH_PROCESSES)
    processes = [_NODE_PROCESSES[engine] + rank_processes * count for count in ranks]
    disk = [_DISK_BYTES_PER_NODE] * len(ranks)
    found = []
    if host.free_memory_bytes is not None and sum(memory) > host.free_memory_bytes:
        free = host.free_memory_bytes
        has = f"{format_bytes(free)} available, room for about {format_count(room_for_ranks(free), 'rank')} with a small model"
        found.append(_Shortage(needs=f"{format_bytes(sum(memory))} of memory", has=has, nodes=_fitting(memory, free)))
    if host.free_process_ids is not None and sum(processes) > host.free_process_ids:
        free = host.free_process_ids
        needs = f"{sum(processes)} processes and threads"
        found.append(_Shortage(needs=needs, has=f"room for {free}", nodes=_fitting(processes, free)))
    if host.free_disk_bytes is not None and _MIN_DISK_BYTES + sum(disk) > host.free_disk_bytes:
        free = host.free_disk_bytes
        needs = f"{format_bytes(_MIN_DISK_BYTES + sum(disk))} on the disk of the runs"
        found.append(_Shortage(needs=needs, has=f"{format_bytes(free)}", nodes=_fitting(disk, free - _MIN_DISK_BYTES)))
    return found


def connects_lazily(spec: ClusterSpec, host: Host, *, engine: str, backend: str) -> bool:
    """
    Return whether gloo should connect two ranks only when they first need it.

    By default, it connects each rank to every other. All network namespaces share the kernel's table of neighbors, and its size cannot
    be set for one of them. When it is full, connections fail with "No route to host" (Linux 6.18: 2 of 2 runs of 64 nodes).
    """
    nodes, most = spec.initial_node_count, host.most_neighbors
    return engine == "docker" and backend == "gloo" and most is not None and nodes * nodes > most


def is_routed(plan: Plan, host: Host) -> bool:
    """Return whether nodes should reach one another through the gateway: even lazy connections would fill the table of neighbors."""
    return plan.backend == "gloo" and _overflows(plan.initial_node_count, host.most_neighbors)


def _overflows(nodes: int, most: int | None) -> bool:
    return most is not None and min(_lazy_neighbors(nodes), nodes * nodes) > most


def _connections(nodes: int, host: Host) -> tuple[Choice, ...]:
    why = (
        f"{nodes} nodes that all connect to one another need {nodes * nodes:,} entries in the kernel's table of neighbors, "
        f"which has {host.most_neighbors:,}: two ranks connect when they first need it ({LAZY_GLOO}=1)"
    )
    lazy = Choice(what="gloo", value="connects lazily", why=why)
    if not _overflows(nodes, host.most_neighbors):
        return (lazy,)
    entries = f"even these connections need {_lazy_neighbors(nodes):,} entries"
    why = f"{entries}: each node sends to the gateway, its only neighbor, which forwards to the others"
    return (lazy, Choice(what="packets", value="routed", why=why))


def _too_many_neighbors(nodes: int, host: Host) -> list[_Shortage]:
    """Return a shortage if the kernel cannot keep the hardware addresses of the nodes even if each only knows the gateway."""
    most = host.most_neighbors
    if most is None or not _overflows(nodes, most) or _ROUTED_NEIGHBORS * nodes <= most:
        return []
    room = 1 << (nodes * nodes).bit_length()
    fix = f"sudo sysctl -w net.ipv4.neigh.default.gc_thresh2={room // 2} net.ipv4.neigh.default.gc_thresh3={room}"
    needs = f"{_ROUTED_NEIGHBORS * nodes:,} entries in the kernel's table of neighbors"
    fitting = max((each for each in range(1, nodes) if not _overflows(each, most)), default=0)
    return [_Shortage(needs=needs, has=f"room for {most:,}", nodes=max(fitting, most // _ROUTED_NEIGHBORS), fix=fix)]


def _lazy_neighbors(nodes: int) -> int:
    """Return how many entries lazy connections take: of the master, the gateway, and both sides of a barrier's log2(n) steps."""
    return nodes * (2 + 2 * (nodes - 1).bit_length())


def _fitting(needs: Iterable[int], free: int) -> int:
    """Return how many of the first nodes fit."""
    return sum(total <= free for total in accumulate(needs))


def _warnings(spec: ClusterSpec, host: Host, ranks: list[int]) -> tuple[Choice, ...]:
    found = []
    free = host.free_memory_bytes
    if free is not None and sum(ranks) > room_for_ranks(free):
        why = f"{format_bytes(free)} of memory available, and about {format_bytes(RANK_BYTES)} for a rank with a small model"
        found.append(("memory", f"room for about {format_count(room_for_ranks(free), 'rank')}", why))
    limits = sum(node.memory or spec.memory or 0 for node in spec.node_specs[: len(ranks)])
    if limits > host.memory_bytes:
        why = (
            f"the limits of all nodes add up to {format_bytes(limits)} of {format_bytes(host.memory_bytes)}: "
            "if nodes use them, this machine runs out of memory first"
        )
        found.append(("memory", "overcommitted", why))
    if host.free_disk_bytes is not None and host.free_disk_bytes < RUN_BYTES:
        found.append(("disk", f"{format_bytes(host.free_disk_bytes)} free", "on the disk of the runs"))
    return tuple(Choice(what=what, value=value, why=why) for what, value, why in found)


RANKS_PER_NODE = 2
MIN_NODE_BYTES = 256 << 20  # a node imports torch
_SIZES = {"nodes", "nproc_per_node", "elastic", "gpus_per_node"}  # fields that say how large the cluster or a node is


def with_default_size(spec: ClusterSpec) -> ClusterSpec:
    """
    Return the spec with two ranks per node if it runs a script of torch.distributed and names no size; else the spec itself.

    With one rank per node, LOCAL_RANK is always 0, and a script that confuses it with RANK passes. Other programs start once per
    node, and so does a script with the launcher "env", which may start its ranks itself.
    """
    is_script = spec.script is not None or spec.module is not None
    if not is_script or spec.recipe != "ddp" or spec.launcher == "env" or spec.model_fields_set & _SIZES:
        return spec
    return spec.model_copy(update={"nproc_per_node": RANKS_PER_NODE})


def plan_of_size(spec: ClusterSpec, plan_of: Callable[[ClusterSpec], Plan]) -> Plan:
    """
    Return the plan with the default size if the spec names none, or with one rank per node if more do not fit on this machine.

    At the default size, ranks do not share GPUs, unless the spec says how to share them.
    """
    sized = with_default_size(spec)
    if sized is not spec and "share" not in spec.model_fields_set:
        sized = sized.model_copy(update={"share": "off"})
    try:
        return plan_of(sized)
    except SpecError as error:
        if sized is spec:
            raise
        plan, why = plan_of(spec), f"two do not fit: {error.message}; --nodes and --nproc-per-node choose the size"
    return replace(plan, choices=(Choice(what="ranks per node", value="1", why=why), *plan.choices))


def fit(
    spec: ClusterSpec, keys: Collection[str], *, cpus: int, memory_bytes: int, has_docker: bool
) -> tuple[ClusterSpec, tuple[Choice, ...]]:
    """Return the spec with those of these limits lowered that this machine cannot honor, and a Choice for each."""
    nodes, changes, choices = len(spec.node_specs), dict[str, Any](), list[Choice]()
    if not has_docker:
        changes = {
            key: type(spec).model_fields[key].get_default() for key in ("cpus", "memory", "image") if key in keys
        }
        why = "nodes without Docker are plain processes, which have no limits and no image"
        return spec.model_copy(update=changes), tuple(Choice(what=key, value="left out", why=why) for key in changes)
    if "cpus" in keys and spec.cpus and spec.cpus * nodes > cpus:
        changes["cpus"] = max(0.1, round(cpus / nodes, 2))
        why = f"the job asks for {spec.cpus:g} on each of {nodes} nodes; this machine has {cpus}"
        choices.append(Choice(what="cpus", value=f"{changes['cpus']:g}", why=why))
    if "memory" in keys and spec.memory and spec.memory * nodes > memory_bytes:
        share = max(MIN_NODE_BYTES, memory_bytes // nodes)
        changes["memory"] = min(spec.memory, share)
        why = f"the job asks for {format_bytes(spec.memory)} on each of {nodes} nodes; this machine has {format_bytes(memory_bytes)}"
        choices.append(Choice(what="memory", value=format_bytes(changes["memory"]), why=why))
    if "shm_size" in keys and spec.shm_size > memory_bytes // 2:
        changes["shm_size"] = memory_bytes // 2
        why = f"the job asks for {format_bytes(spec.shm_size)}; this machine has {format_bytes(memory_bytes)} of memory"
        choices.append(Choice(what="shm_size", value=format_bytes(memory_bytes // 2), why=why))
    return spec.model_copy(update=changes), tuple(choices)
