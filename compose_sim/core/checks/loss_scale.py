"""Is the gradient that of the mean over all samples, and the learning rate scaled once?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Is the gradient that of the mean over all samples, and the learning rate scaled once?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
