"""Choose the size of a cluster that nobody chose: two ranks per node, so that LOCAL_RANK and RANK differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compose_sim.core.plan.model import Choice, Plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

RANKS_PER_NODE = 2
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
