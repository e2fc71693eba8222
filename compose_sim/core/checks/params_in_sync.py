"""Are parameters, buffers and optimizer state equal on all ranks?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Are parameters, buffers and optimizer state equal on all ranks?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
