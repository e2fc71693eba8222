"""Does every rank end well after its training?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Does every rank end well after its training?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
