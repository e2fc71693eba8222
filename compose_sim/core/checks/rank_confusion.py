"""Are RANK and LOCAL_RANK each used where they belong?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Are RANK and LOCAL_RANK each used where they belong?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
