"""What does Ctrl-C do to one rank? SIGINT, which Python makes a KeyboardInterrupt of."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import ended

TARGET = "rank"
SUMMARY = "Interrupt one rank by SIGINT: KeyboardInterrupt."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The real signal, sent by the rank's agent."""
    return ended(fault, scene, how="interrupted (SIGINT)", order="rank_signal", signal="INT")
