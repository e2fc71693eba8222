"""What is a scheduler's polite end of one process? SIGTERM, which the script may catch to save its work."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import ended

TARGET = "rank"
SUMMARY = "Ask one rank to end by SIGTERM, which the script may catch."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The real signal, sent by the rank's agent."""
    return ended(fault, scene, how="told to end (SIGTERM)", order="rank_signal", signal="TERM")
