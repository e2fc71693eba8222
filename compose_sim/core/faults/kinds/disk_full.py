"""What is a full disk? Every page of a node's `--scratch`, a file system of its own in memory, is taken until healed."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Order, Scene, require_running
from compose_sim.core.faults.commands import Fault
from compose_sim.errors import SpecError

SUMMARY = "Fill the disk of its own that a node has with --scratch, never this machine's."
ENGINES = ("docker",)
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """A file that takes what is free; it is removed when it is healed. SpecError in a run without `--scratch`."""
    nodes = fault.nodes
    require_running(nodes, scene)
    if not scene.plan.scratch_bytes:
        raise SpecError(
            "no node has a disk of its own, and this machine's is never filled", hint="composesim up --scratch 64m …"
        )
    return Lowered(
        text=f"disk of {', '.join(nodes)} full",
        do=tuple(Order(node=node, name="disk_full") for node in nodes),
        undo=tuple(Order(node=node, name="disk_full", on=False) for node in nodes),
    )
