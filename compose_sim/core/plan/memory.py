"""The memory that a rank is estimated to need, and which nodes have too little for theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from compose_sim.core.plan.model import Plan
from compose_sim.core.units import format_bytes, format_count


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
