"""Are the parameters those that DDP wrapped?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Are the parameters those that DDP wrapped?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
