"""What a run says that it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.state.progress import awaited, pace, phases_of
from tests.builders import a_plan, an_event
from tests.core.story import Story


def test_each_phase_names_who_is_awaited() -> None:
    story = Story(a_plan(nodes=2))
    assert awaited(story.state) == "node-0 and node-1 to start"
    story.starts(0.0, 0, 1)
    assert awaited(story.state) == "the rendezvous of 2 nodes"
    story.round(1.0, 0, 1)
    assert awaited(story.state) == "rank 0 and rank 1, which have not imported torch"
    story.tell(2.0, "step", 0, step=1)
    assert awaited(story.state) == ""


def test_the_pace_is_that_of_the_current_round() -> None:
    story = Story(a_plan(nodes=2)).starts(0.0, 0, 1).round(1.0, 0, 1)
    story.tell(2.0, "step", 0, step=1)
    assert pace(story.state) is None
    assert pace(story.tell(4.0, "step", 0, step=9).state) == 4.0
    story.round(100.0, 0, 1).tell(101.0, "step", 0, step=1)
    assert pace(story.state) is None


def test_nobody_knows_what_a_command_does() -> None:
    story = Story(a_plan(nodes=2)).starts(0.0, 0, 1)
    assert awaited(story.state, is_command=True) == "the rendezvous of 2 nodes"
    assert awaited(story.round(1.0, 0, 1).state, is_command=True) == ""


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
