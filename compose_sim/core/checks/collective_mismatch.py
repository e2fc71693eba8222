"""Do all ranks of a group issue the same collectives in the same order?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Do all ranks of a group issue the same collectives in the same order?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
