"""What is a bug in the person's own code? An exception on the rank's main thread, at the line where it is."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import ended

TARGET = "rank"
SUMMARY = "Raise an exception in a rank, at the line where its main thread is."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The exception ends the rank, unless the script catches it."""
    return ended(fault, scene, how="raises", order="rank_fault", act="raise")
