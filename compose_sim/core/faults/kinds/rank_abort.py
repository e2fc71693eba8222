"""What is a failed assertion in C++ code? SIGABRT, as std::terminate and NCCL's watchdog send it."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import ended

TARGET = "rank"
SUMMARY = "End a rank by SIGABRT, as a failed assertion in C++ or NCCL's watchdog does."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The real signal, sent by the rank's agent."""
    return ended(fault, scene, how="aborts (SIGABRT)", order="rank_signal", signal="ABRT")
