"""Does every rank go on?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Does every rank go on?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
