"""Do all ranks train on equally many batches?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable

QUESTION = "Do all ranks train on equally many batches?"


def judge(case: Case) -> Result:
    """TODO."""
    return not_applicable("not built yet")
