"""Is every shared file written by one rank, and read when it is whole?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Is every shared file written by one rank, and read when it is whole?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
