"""What is a straggler? A node whose processes get a fraction of a CPU, by the limit of its control group."""

from __future__ import annotations

from compose_sim.core.faults import LimitCpus, Lowered, Option, Scene, require_running
from compose_sim.core.faults.commands import Fault


def _cpus(text: str) -> float:
    cpus = float(text)
    if not 0.01 <= cpus <= 1024:  # Docker takes no less than a hundredth
        raise ValueError(f"'{text}' is not a number of CPUs, 0.01 or more")
    return cpus


SUMMARY = "Give a node little CPU: a straggler."
ENGINES = ("docker",)
NEEDS = "cpu-quota"
OPTIONS: dict[str, Option] = {"limit": (_cpus, ..., "CPUs that the node may use, such as 0.2.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The limit; the plan's own when it is healed."""
    nodes, limit = fault.nodes, fault.options["limit"]
    require_running(nodes, scene)
    return Lowered(
        text=f"{', '.join(nodes)} limited to {limit:g} CPUs",
        do=tuple(LimitCpus(node=node, cpus=limit) for node in nodes),
        undo=tuple(LimitCpus(node=node, cpus=None) for node in nodes),
    )
