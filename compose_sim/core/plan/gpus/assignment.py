"""Assign GPUs to nodes, or say in numbers why they do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from compose_sim.core.host.gpus import Gpu, Inventory
from compose_sim.core.plan.gpus.request import eligible_gpus, label, named_gpus
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """The GPUs that one node requests: those named in `gpus`, or `per_node` of the cluster's, by default one per rank."""

    node: str
    ranks: int
    gpus: str = ""
    per_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The GPUs of each node, in the order of the nodes, and the users of each GPU."""

    nodes: tuple[tuple[Gpu, ...], ...]
    left_out: str  # GPUs that `auto` does not use, with reasons
    ranks: dict[str, int]  # by UUID
    sharers: dict[str, tuple[str, ...]]  # the nodes that see a GPU, by UUID

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return each GPU that any node sees once, in the order of first use."""
        return tuple({gpu.uuid: gpu for node in self.nodes for gpu in node}.values())


def gpu_requests(spec: ClusterSpec) -> list[GpuRequest]:
    """Return what each node of a spec requests, in the order of the nodes."""
    return [
        GpuRequest(
            node=f"node-{number}",
            ranks=node.nproc_per_node or spec.nproc_per_node,
            gpus=node.gpus or "",
            per_node=spec.gpus_per_node,
        )
        for number, node in enumerate(spec.node_specs)
    ]


def assign(requests: Sequence[GpuRequest], inventory: Inventory, *, gpus: str) -> Assignment:
    """
    Spread the nodes evenly over the GPUs that `gpus` selects ("auto", "all" or names).

    Each node gets the GPUs with the fewest ranks so far, so nodes share GPUs only if there are too few.
    Raises SpecError if a node requests more GPUs than there are.
    """
    pool, left_out = inventory.gpus, ""
    if gpus == "auto":
        pool, left_out = eligible_gpus(inventory)
    elif gpus != "all":
        pool = named_gpus(gpus, inventory)
    load: Counter[str] = Counter()
    sharers: dict[str, tuple[str, ...]] = {}
    nodes = []
    for request in requests:
        chosen = _named(request, inventory) if request.gpus else _least_used(request, pool, load)
        _require_one_slice(request, chosen)
        for gpu in chosen:  # a rank may compute on several of them
            load[gpu.uuid] += -(-request.ranks // len(chosen))
            sharers[gpu.uuid] = (*sharers.get(gpu.uuid, ()), request.node)
        nodes.append(chosen)
    return Assignment(nodes=tuple(nodes), left_out=left_out, ranks=dict(load), sharers=sharers)


def _named(request: GpuRequest, inventory: Inventory) -> tuple[Gpu, ...]:
    return () if request.gpus == "none" else named_gpus(request.gpus, inventory)


def _least_used(request: GpuRequest, pool: Sequence[Gpu], load: Counter[str]) -> tuple[Gpu, ...]:
    wanted = request.per_node or request.ranks
    if wanted > len(pool):
        message, hint = _too_few(request, wanted, pool)
        raise SpecError(message, hint=hint)
    order = sorted(range(len(pool)), key=lambda number: (load[pool[number].uuid], number))
    return tuple(pool[number] for number in sorted(order[:wanted]))


def _too_few(request: GpuRequest, wanted: int, pool: Sequence[Gpu]) -> tuple[str, str]:
    there = "there is 1 GPU" if len(pool) == 1 else f"there are {len(pool)} GPUs"
    if request.per_node:
        return f"{request.per_node} GPUs per node are too many: {there}", (
            f"composesim up --gpus-per-node {len(pool)} …, or --gpus emulated"
        )
    return (
        f"{request.node} needs {request.ranks} GPUs, one per rank, and {there}: NCCL refuses two ranks of one node on one GPU",
        f"composesim up --nodes {wanted} --nproc-per-node 1 …, as nodes can share a GPU; or --gpus emulated",
    )


def _require_one_slice(request: GpuRequest, chosen: Sequence[Gpu]) -> None:
    """Raise SpecError for several MIG slices: CUDA shows a process only one."""
    if len(chosen) > 1 and any(gpu.parent for gpu in chosen):
        slices = ", ".join(label(gpu) for gpu in chosen)
        raise SpecError(
            f"{request.node} would see {slices}, and CUDA shows a process only one MIG slice",
            hint=f"composesim up --nodes {len(chosen)} --gpus-per-node 1 …",
        )
