"""Choose the size of a cluster if the user did not, and lower the limits of a job to what this machine has.

The default is two ranks per node, so that LOCAL_RANK and RANK differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from compose_sim.core.plan.model import Choice, Plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.units import format_bytes
from compose_sim.errors import SpecError

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

    Ranks that nobody asked for do not share GPUs either, unless the spec says how to share them.
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
