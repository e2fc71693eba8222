"""Is the model called through its DDP wrapper?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Is the model called through its DDP wrapper?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
