"""What is a rank that the system has stopped? SIGSTOP to it, and SIGCONT when it is healed."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import held

TARGET = "rank"
SUMMARY = "Stop one rank by SIGSTOP; its connections stay open."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The real signal; SIGCONT heals."""
    return held(fault, scene, how="stopped (SIGSTOP)", order="rank_signal", signal="STOP")
