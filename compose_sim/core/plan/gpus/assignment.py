"""Assign GPUs to nodes, or say in numbers why they do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compose_sim.core.host.gpus import Gpu, Inventory
from compose_sim.core.plan.gpus.request import eligible_gpus, label, named_gpus
from compose_sim.errors import SpecError

if TYPE_CHECKING:  # the model of a request takes longer to import than a command that only reads a run needs
    from compose_sim.core.request.spec import ClusterSpec


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


def assign(spec: ClusterSpec, inventory: Inventory) -> Assignment:
    """
    Spread the nodes evenly over the GPUs that `--gpus` selects ("auto", "all" or names), by default one GPU per rank.

    Each node gets the GPUs with the fewest ranks so far, so nodes share GPUs only if there are too few.
    Raises SpecError if a node requests more GPUs than there are.
    """
    pool, left_out = inventory.gpus, ""
    if spec.gpus == "auto":
        pool, left_out = eligible_gpus(inventory)
    elif spec.gpus != "all":
        pool = named_gpus(spec.gpus, inventory)
    load: Counter[str] = Counter()
    sharers: dict[str, tuple[str, ...]] = {}
    nodes = []
    for number, own in enumerate(spec.node_specs):
        node, ranks = f"node-{number}", own.nproc_per_node or spec.nproc_per_node
        if own.gpus:
            chosen = () if own.gpus == "none" else named_gpus(own.gpus, inventory)
        else:
            chosen = _least_used(node, ranks, spec.gpus_per_node, pool, load)
        _require_one_slice(node, chosen)
        for gpu in chosen:  # a rank may compute on several of them
            load[gpu.uuid] += -(-ranks // len(chosen))
            sharers[gpu.uuid] = (*sharers.get(gpu.uuid, ()), node)
        nodes.append(chosen)
    return Assignment(nodes=tuple(nodes), left_out=left_out, ranks=dict(load), sharers=sharers)


def _least_used(
    node: str, ranks: int, per_node: int | None, pool: Sequence[Gpu], load: Counter[str]
) -> tuple[Gpu, ...]:
    wanted = per_node or ranks
    if wanted > len(pool):
        there = "there is 1 GPU" if len(pool) == 1 else f"there are {len(pool)} GPUs"
        if per_node:
            raise SpecError(
                f"{per_node} GPUs per node are too many: {there}",
                hint=f"composesim up --gpus-per-node {len(pool)} …, or --gpus emulated",
            )
        raise SpecError(
            f"{node} needs {ranks} GPUs, one per rank, and {there}: NCCL refuses two ranks of one node on one GPU",
            hint=f"composesim up --nodes {wanted} --nproc-per-node 1 …, as nodes can share a GPU; or --gpus emulated",
        )
    order = sorted(range(len(pool)), key=lambda number: (load[pool[number].uuid], number))
    return tuple(pool[number] for number in sorted(order[:wanted]))


def _require_one_slice(node: str, chosen: Sequence[Gpu]) -> None:
    """Raise SpecError for several MIG slices: CUDA shows a process only one."""
    if len(chosen) > 1 and any(gpu.parent for gpu in chosen):
        slices = ", ".join(label(gpu) for gpu in chosen)
        raise SpecError(
            f"{node} would see {slices}, and CUDA shows a process only one MIG slice",
            hint=f"composesim up --nodes {len(chosen)} --gpus-per-node 1 …",
        )
