"""Tabulate what each node uses, for `composesim stats`."""

from __future__ import annotations

from typing import Any

from compose_sim.core.state.node_phase import phase_of
from compose_sim.core.state.state import ClusterState, NodeState
from compose_sim.core.units import format_bytes, format_seconds

HEADER = ("node", "state", "CPU", "CPU time", "memory", "of", "peak", "received", "sent")
GPU_HEADER = ("GPU", "GPU memory")  # of whole GPUs, including other users
_UNKNOWN = "–"
_SIZES = ("memory_bytes", "memory_limit_bytes", "peak_memory_bytes", "received_bytes", "sent_bytes")
_AS_MEASURED = (*_SIZES, "gpu_use", "gpu_memory_bytes", "peak_gpu_memory_bytes")
_OF_NOW = ("memory_bytes", "gpu_use", "gpu_memory_bytes")  # unknown once the node has gone


def usage_table(state: ClusterState) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and one row per node; the columns for GPUs only if any node has one."""
    has_gpus = any(node.usage and node.usage.gpu_memory_bytes is not None for node in state.nodes.values())
    rows = [_row(node, phase_of(state, node.name), with_gpus=has_gpus) for node in state.nodes.values()]
    return HEADER + (GPU_HEADER if has_gpus else ()), rows


def usage_values(state: ClusterState) -> list[dict[str, Any]]:
    """Return the same as JSON values; sizes are in bytes, and unknown values are null."""
    return [_values(node, phase_of(state, node.name)) for node in state.nodes.values()]


def _row(node: NodeState, phase: str, *, with_gpus: bool) -> tuple[str, ...]:
    values = _values(node, phase)
    use, gpu_memory = values["gpu_use"], values["gpu_memory_bytes"]
    gpus = (
        _UNKNOWN if use is None else f"{use:.0%}",
        _UNKNOWN if gpu_memory is None else format_bytes(gpu_memory),
    )
    cpus, seconds = values["cpus"], values["cpu_seconds"]
    return (
        node.name,
        phase,
        _UNKNOWN if cpus is None else f"{cpus:.0%}",
        _UNKNOWN if seconds is None else format_seconds(seconds),
        *(_UNKNOWN if values[key] is None else format_bytes(values[key]) for key in _SIZES),
        *(gpus if with_gpus else ()),
    )


def _values(node: NodeState, phase: str) -> dict[str, Any]:
    usage, now = node.usage, None if node.is_gone else node.usage
    return {
        "node": node.name,
        "state": phase,
        "cpus": round(now.cpus, 3) if now and now.cpus is not None else None,
        "cpu_seconds": round(usage.cpu_seconds, 2) if usage else None,
        **{name: getattr(now if name in _OF_NOW else usage, name, None) for name in _AS_MEASURED},
    }
