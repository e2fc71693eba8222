"""A command is divided into phases without gaps, in the order in which they ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.state.phases import phases_of
from tests.builders import an_event


def test_phases_follow_each_other_without_gaps() -> None:
    events = [
        *(an_event("step", t=105.0, rank=0), an_event("step", t=109.0, rank=0)),
        *(an_event("script-ended", t=109.5, rank=1), an_event("script-ended", t=110.0, rank=0)),
        *(an_event("node-started", t=102.0, node="node-1"), an_event("node-started", t=101.5)),
    ]
    phases = phases_of(100.0, {"plan": 101.0, "report": 112.0}, events)

    assert [(phase.name, phase.seconds) for phase in phases] == [
        ("plan", 1.0),
        ("nodes start", 1.0),
        ("script until the first step", 3.0),
        ("steps", 5.0),
        ("report", 2.0),
    ]
    assert phases[-1].ended_at == sum(phase.seconds for phase in phases) == 12.0


@pytest.mark.parametrize("kind", ["rank-started", "step"])
def test_a_later_round_does_not_move_a_phase(kind: str) -> None:
    events = [an_event(kind, t=105.0, rank=0), replace(an_event(kind, t=150.0, rank=0), generation=1)]
    (phase,) = phases_of(100.0, {}, events)
    assert phase.ended_at == 5.0
