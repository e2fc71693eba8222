"""What is the sudden death of one process, its node alive? SIGKILL to the rank, which nothing can catch."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import ended

TARGET = "rank"
SUMMARY = "Kill one rank by SIGKILL; its node lives."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The real signal, sent by the rank's agent."""
    return ended(fault, scene, how="killed (SIGKILL)", order="rank_signal", signal="KILL")
