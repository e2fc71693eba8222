"""Are reported metrics those of all ranks, and reported once?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Are reported metrics those of all ranks, and reported once?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
