"""Options that contradict one another, or make no sense, are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from compose_sim.plugins.resume.core.options import ResumeOptions


@pytest.mark.parametrize(
    "options",
    [
        {"resume": True, "mid_save": True, "at_step": 3},
        {"resume": True, "world": "2"},
        {"resume": True, "world": "0:2"},
    ],
)
def test_they_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ResumeOptions(**options)


def test_the_others_are_taken() -> None:
    assert ResumeOptions(at_step=3).at_step == 3  # of a settings file, for runs with --resume
    assert ResumeOptions(resume=True, world="4:2", mid_save=True, interrupt="sigkill").world == "4:2"
