"""Does one rank with the same global batches compute the same?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Does one rank with the same global batches compute the same?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
