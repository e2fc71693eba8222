"""What is a crash in C code? SIGSEGV, after which no Python runs any more."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import ended

TARGET = "rank"
SUMMARY = "End a rank by SIGSEGV, as a crash in C code does."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The real signal, sent by the rank's agent."""
    return ended(fault, scene, how="crashes (SIGSEGV)", order="rank_signal", signal="SEGV")
