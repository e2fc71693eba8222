"""What is a node that reboots? It is killed, and started again at once; one that was killed before is only started."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene, Signal, Start
from compose_sim.core.faults.commands import Fault

SUMMARY = "Kill a node and start it again at once; start one that was killed."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """SIGKILL where it runs, then a start: nothing is left to heal."""
    nodes = fault.nodes
    kill = tuple(Signal(node=node, name="KILL") for node in nodes if node in scene.running)
    return Lowered(
        text=f"{', '.join(nodes)} started again",
        do=kill + tuple(Start(node=node) for node in nodes),
        loses=nodes,
    )
