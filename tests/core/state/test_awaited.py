"""What a run says that it waits for."""

from __future__ import annotations

from compose_sim.core.state.awaited import awaited
from tests.builders import a_plan
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


def test_nobody_knows_what_a_command_does() -> None:
    story = Story(a_plan(nodes=2)).starts(0.0, 0, 1)
    assert awaited(story.state, is_command=True) == "the rendezvous of 2 nodes"
    assert awaited(story.round(1.0, 0, 1).state, is_command=True) == ""
