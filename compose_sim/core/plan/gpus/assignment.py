"""Which node sees which GPUs? Nodes and GPUs in; UUIDs for each node out, or why it does not fit, with the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from compose_sim.core.host.gpus import Gpu, Inventory
from compose_sim.core.plan.gpus.request import eligible_gpus, label, named_gpus
from compose_sim.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one node asks for: `gpus` names its own, "" takes from the cluster's; `per_node` is None where any number will do."""

    node: str
    ranks: int
    gpus: str = ""
    per_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The GPUs of each node, in node order; what was left out; and how many ranks compute on each GPU."""

    nodes: tuple[tuple[Gpu, ...], ...]
    left_out: str
    ranks: dict[str, int]  # by UUID
    sharers: dict[str, tuple[str, ...]]  # by UUID: the nodes that see it

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Each GPU that any node sees, once, in the machine's order of first use."""
        return tuple({gpu.uuid: gpu for node in self.nodes for gpu in node}.values())


def assign(wishes: Sequence[Wish], inventory: Inventory, *, gpus: str) -> Assignment:
    """
    Spread the nodes evenly over the GPUs that `gpus` ("auto", "all" or names) stands for.

    Each node takes the GPUs that fewest ranks use so far, so that nodes share only where there are fewer GPUs than asked for.
    SpecError where a node asks for more GPUs than there are.
    """
    pool, left_out = inventory.gpus, ""
    if gpus == "auto":
        pool, left_out = eligible_gpus(inventory)
    elif gpus != "all":
        pool = named_gpus(gpus, inventory)
    load: Counter[str] = Counter()
    nodes = []
    for wish in wishes:
        chosen = _of_its_own(wish, inventory) if wish.gpus else _least_used(wish, pool, load)
        _require_one_slice(wish, chosen)
        for gpu in chosen:  # a rank may compute on several of them
            load[gpu.uuid] += -(-wish.ranks // len(chosen))
        nodes.append(chosen)
    return Assignment(
        nodes=tuple(nodes),
        left_out=left_out,
        ranks=dict(load),
        sharers={
            uuid: tuple(
                wish.node for wish, node in zip(wishes, nodes, strict=True) if any(gpu.uuid == uuid for gpu in node)
            )
            for uuid in load
        },
    )


def _of_its_own(wish: Wish, inventory: Inventory) -> tuple[Gpu, ...]:
    return () if wish.gpus == "none" else named_gpus(wish.gpus, inventory)


def _least_used(wish: Wish, pool: Sequence[Gpu], load: Counter[str]) -> tuple[Gpu, ...]:
    wanted = wish.per_node or wish.ranks
    if wanted > len(pool):
        message, hint = _too_few(wish, wanted, pool)
        raise SpecError(message, hint=hint)
    order = sorted(range(len(pool)), key=lambda number: (load[pool[number].uuid], number))
    return tuple(pool[number] for number in sorted(order[:wanted]))


def _too_few(wish: Wish, wanted: int, pool: Sequence[Gpu]) -> tuple[str, str]:
    there = "there is 1 GPU" if len(pool) == 1 else f"there are {len(pool)} GPUs"
    if wish.per_node:
        return f"{wish.per_node} GPUs per node are more than a node can see: {there} to take from", (
            f"composesim up --gpus-per-node {len(pool)} …, or --gpus emulated"
        )
    return (
        f"{wish.node} has {wish.ranks} ranks, which take a GPU each, and {there}: NCCL refuses two ranks of one node on one GPU",
        f"composesim up --nodes {wanted} --nproc-per-node 1 …, whose nodes can share one; or --gpus emulated",
    )


def _require_one_slice(wish: Wish, chosen: Sequence[Gpu]) -> None:
    """CUDA shows a process one MIG slice, whatever it was given."""
    if len(chosen) > 1 and any(gpu.parent for gpu in chosen):
        slices = ", ".join(label(gpu) for gpu in chosen)
        raise SpecError(
            f"{wish.node} would see {slices}, and CUDA shows a process one MIG slice at most",
            hint=f"composesim up --nodes {len(chosen)} --gpus-per-node 1 …",
        )
