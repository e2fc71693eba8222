"""Does each rank see samples of its own?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Does each rank see samples of its own?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
