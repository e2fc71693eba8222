"""Is every sample used once an epoch?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Is every sample used once an epoch?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
