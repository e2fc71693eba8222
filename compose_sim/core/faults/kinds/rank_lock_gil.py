"""What is a rank that hangs in C code? Its main thread sleeps with the interpreter's lock, so that no Python of it runs."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import held

TARGET = "rank"
SUMMARY = "Hang a rank with the interpreter's lock held, as a C extension can."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """It goes on where it was when it is healed."""
    return held(fault, scene, how="holds the interpreter's lock", order="rank_fault", act="lock-gil")
