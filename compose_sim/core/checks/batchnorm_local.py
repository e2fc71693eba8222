"""Are BatchNorm's statistics those of the whole batch?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Are BatchNorm's statistics those of the whole batch?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
