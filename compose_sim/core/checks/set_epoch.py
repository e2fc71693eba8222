"""Does the order of samples change from epoch to epoch?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Does the order of samples change from epoch to epoch?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
