"""What does each node use? The rows of `composesim stats`, as words and as values."""

from __future__ import annotations

from typing import Any

from compose_sim.core.phases import phase_of
from compose_sim.core.quantities import format_bytes, format_seconds
from compose_sim.core.state import ClusterState, NodeState

HEADER = ("node", "state", "CPU", "CPU time", "memory", "of", "peak", "received", "sent")
_NOTHING = "–"


def usage_rows(state: ClusterState) -> list[tuple[str, ...]]:
    """A row a node: CPUs in use now, CPU time so far, memory now, its limit and its peak, network received and sent."""
    return [_row(node, phase_of(state, node.name)) for node in state.nodes.values()]


def usage_values(state: ClusterState) -> list[dict[str, Any]]:
    """The same as JSON values, sizes in bytes; null for what is not known."""
    return [_values(node, phase_of(state, node.name)) for node in state.nodes.values()]


def _row(node: NodeState, phase: str) -> tuple[str, ...]:
    values = _values(node, phase)
    cpus, seconds = values["cpus"], values["cpu_seconds"]
    sizes = ("memory_bytes", "memory_limit_bytes", "peak_memory_bytes", "received_bytes", "sent_bytes")
    return (
        node.name,
        phase,
        _NOTHING if cpus is None else f"{cpus:.0%}",
        _NOTHING if seconds is None else format_seconds(seconds),
        *(_NOTHING if values[key] is None else format_bytes(values[key]) for key in sizes),
    )


def _values(node: NodeState, phase: str) -> dict[str, Any]:
    usage = node.usage
    return {
        "node": node.name,
        "state": phase,
        "cpus": round(usage.cpus, 3) if usage and usage.cpus is not None and not node.is_gone else None,
        "cpu_seconds": round(usage.cpu_seconds, 2) if usage else None,
        "memory_bytes": usage.memory_bytes if usage and not node.is_gone else None,
        "memory_limit_bytes": usage.memory_limit_bytes if usage else None,
        "peak_memory_bytes": usage.peak_memory_bytes if usage else None,
        "received_bytes": usage.received_bytes if usage else None,
        "sent_bytes": usage.sent_bytes if usage else None,
    }
