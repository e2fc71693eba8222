"""What is a rank that leaks file descriptors? Its limit of open files is what it has open: it can open no other."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import held

TARGET = "rank"
SUMMARY = "Let a rank open no more files and sockets (EMFILE)."
ENGINES = ("docker", "local")
NEEDS = ""


def lower(fault: Fault, scene: Scene) -> Lowered:
    """The limit; the old one is put back when it is healed."""
    return held(fault, scene, how="can open no more files", order="rank_files_full")
