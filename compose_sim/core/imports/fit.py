"""Scale the limits of a job down to this machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from compose_sim.core.plan.model import Choice
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.units import format_bytes

_LEAST_BYTES = 256 << 20  # of a node that imports torch


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
        share = max(_LEAST_BYTES, memory_bytes // nodes)
        changes["memory"] = min(spec.memory, share)
        why = f"the job asks for {format_bytes(spec.memory)} on each of {nodes} nodes; this machine has {format_bytes(memory_bytes)}"
        choices.append(Choice(what="memory", value=format_bytes(changes["memory"]), why=why))
    if "shm_size" in keys and spec.shm_size > memory_bytes // 2:
        changes["shm_size"] = memory_bytes // 2
        why = f"the job asks for {format_bytes(spec.shm_size)}; this machine has {format_bytes(memory_bytes)} of memory"
        choices.append(Choice(what="shm_size", value=format_bytes(memory_bytes // 2), why=why))
    return spec.model_copy(update=changes), tuple(choices)
