"""What is a rank that never comes to the collective? Its main thread sleeps, where the script was, until healed."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import held

TARGET = "rank"
SUMMARY = "Hang a rank at the line where its main thread is."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """It goes on where it was when it is healed."""
    return held(fault, scene, how="hangs", order="rank_fault", act="hang")
