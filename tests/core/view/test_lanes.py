"""A lane in the terminal shows what took longest in each part of the last seconds."""

from __future__ import annotations

from compose_sim.core.events.events import Event
from compose_sim.core.state.timeline import KINDS, Span
from compose_sim.core.view.lanes import AWAITED, COMPUTES, ELSE, MOVES, WAITS, Lanes
from compose_sim.core.view.page import PageFold
from tests.builders import a_plan
from tests.core.story import Story


def test_lanes_of_the_last_seconds_and_who_waits_for_whom() -> None:
    plan = a_plan(nodes=3)
    story = Story(plan)
    story.events[0] = Event(t=1.0, kind="started")
    story.starts(1.0, 0, 1, 2).round(2.0, 0, 1, 2).trains(30.0, 1, 1)
    fold = PageFold(plan)
    fold.add_events(story.events)
    now = fold.state.last_t
    fold.add_spans(
        [
            Span(0, "forward", now - 10.0, 2.0, 1),
            Span(0, "waiting", now - 8.0, 4.0, 1, "barrier #1", 1),
            Span(0, "moving", now - 4.0, 2.0, 1, "barrier #1"),
            Span(0, "forward", now - 100.0, 1.0, 0),
        ]
    )
    began = round(now - (fold.state.started_at or 0.0) - 1.0, 3)
    waits = {0: [KINDS.index("waiting"), "barrier #2", began, 1.0, [1]]}
    zero, one, two = Lanes(seconds=10.0, cells=5).take(fold.take(report=None, is_over=False, current=waits))

    assert zero.cells == COMPUTES + WAITS + WAITS + MOVES + WAITS
    assert one.cells == ELSE + AWAITED + AWAITED + ELSE + AWAITED
    assert two.cells == ELSE * 5
    assert (zero.words, one.words) == ("waits for 1 s: rank 1", "rank 0 waits for it")
