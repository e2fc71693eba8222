"""A run becomes one message, or several: what is appended is there once, and what is replaced is the latest."""

from __future__ import annotations

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.report.report import Cause
from compose_sim.core.state.timeline import KINDS, Span
from compose_sim.core.view.page import PageFold
from compose_sim.core.view.thinning import thin
from tests.builders import a_plan, a_report, an_event
from tests.core.story import Story


def metric(t: float, rank: int, **data: object) -> Event:
    return an_event("metric", t, rank=rank, **data)


def test_a_message_holds_what_is_new_since_the_last_one() -> None:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events(Story(a_plan(nodes=2)).starts(1.0, 0, 1).round(2.0, 0, 1).trains(3.0, 1, 2).events)
    fold.add_events([metric(4.0, 1, step=3, loss=0.5, note="x"), an_event("log", 4.0, rank=1, line="<b>")])
    first = fold.take(report=None, is_over=False)
    second = fold.take(report=None, is_over=False)

    assert first["metrics"] == [["loss", 1, 3, 0.5]]
    assert [line[:2] for line in first["logs"]] == [[1, "<b>"]]
    assert (second["metrics"], second["logs"], second["now"]["metrics"]["loss"]) == ([], [], 0.5)
    assert (first["now"]["verdict"], first["now"]["cause"], first["now"]["is_over"]) == ("running", None, False)


def test_spans_are_microseconds_since_the_start_and_waits_are_charged_to_the_late_rank() -> None:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=100.0, kind="started")])
    fold.add_spans([Span(0, "waiting", 100.5, 0.25, 7, "barrier", late=1), Span(1, "moving", 101.0, 0.1, 7, "barrier")])
    message = fold.take(report=None, is_over=False)

    waiting, moving = KINDS.index("waiting"), KINDS.index("moving")
    assert message["spans"] == [[0, waiting, 500_000, 250_000, 7, 1, 1], [1, moving, 1_000_000, 100_000, 7, 1, None]]
    assert message["texts"] == ["barrier"]
    assert message["now"]["shares"] == {0: {"waiting": 0.25}, 1: {"caused": 0.25, "moving": 0.1}}


def test_a_rank_lives_on_one_node_per_round_and_stalls_until_it_goes_on() -> None:
    plan = a_plan(nodes=3, elastic="2:3")
    fold = PageFold(plan)
    story = Story(plan)
    story.events[0] = Event(t=1.0, kind="started")
    story.starts(2.0, 0, 1, 2).round(10.0, 0, 1, 2).tell(11.0, "rank-started", 1, pid=5)
    story.tell(40.0, "stalled", 1, since_s=15.0, doing="sleeping").tell(41.0, "resumed", 1)
    story.tell(41.5, "stalled", 1, since_s=0.2, waiting_in="barrier #1").tell(42.0, "rank-exited", 1, exit_code=0)
    story.round(42.5, 0, 2).tell(43.0, "rank-started", 2, pid=6)
    story.events.append(Event(t=44.0, kind="node-lost", node="master", data={"node": "node-2"}))
    story.round(44.5, 0, 1).tell(45.0, "rank-started", 1, pid=7)
    story.events.append(Event(t=46.0, kind="rank-exited", node="node-0", rank=1, generation=2))  # of another node
    fold.add_events(story.events)
    now = fold.take(report=None, is_over=False)["now"]

    assert now["lives"] == {1: [[10.0, 41.0, "node-1"], [42.0, 43.0, "node-2"], [44.0, None, "node-1"]]}
    assert now["stalls"] == {1: [[24.0, 40.0, False], [40.3, 41.0, True]]}  # whether it waits for others


def test_a_collective_that_never_ended_lasts_until_its_rank_was_stopped() -> None:
    fold = PageFold(a_plan(nodes=3))
    story = Story(a_plan(nodes=3)).starts(1.0, 0, 1, 2).round(2.0, 0, 1, 2)
    story.events[0] = Event(t=0.0, kind="started")
    for rank in range(3):
        story.tell(2.0, "rank-started", rank, pid=5 + rank)
    story.tell(20.0, "stalled", 0, since_s=15.0, doing="waiting", waiting_in="all_reduce #3", frames=[["a.py", 3, "f"]])
    story.tell(
        20.0, "stalled", 1, since_s=15.0, doing="sleeping", place=["a.py", 9, "g", ""], frames=[["a.py", 9, "g"]]
    )
    story.tell(20.0, "stalled", 2, since_s=15.0, doing="waiting", waiting_in="all_reduce #3", frames=[["a.py", 3, "f"]])
    story.tell(21.0, "stalled", 2, since_s=16.0, doing="waiting", waiting_in="all_reduce #3", frames=[["a.py", 3, "f"]])
    fold.add_events(story.events)
    assert fold.take(report=None, is_over=False)["spans"] == []
    fold.add_events(story.tell(30.0, "rank-exited", 0, exit_code=None, signal=15).events[-1:])
    fold.add_events([an_event("stopping", 40.0, reason="hang")])
    message = fold.take(report=a_report(verdict="hung"), is_over=True)

    waiting = KINDS.index("waiting")
    assert [[*span[:4], span[6]] for span in message["spans"]] == [
        [0, waiting, 5_000_000, 25_000_000, 1],
        [2, waiting, 5_000_000, 35_000_000, 1],
    ]
    assert message["texts"] == ["all_reduce #3"]


def test_a_hang_has_the_stacks_of_all_ranks_with_that_of_the_culprit_first() -> None:
    fold = PageFold(a_plan(nodes=2))
    story = Story(a_plan(nodes=2)).starts(1.0, 0, 1).round(2.0, 0, 1)
    story.tell(20.0, "stalled", 0, doing="waiting", waiting_in="all_reduce #3", frames=[["a.py", 3, "f"]])
    story.tell(20.0, "stalled", 1, doing="sleeping", place=["a.py", 9, "g", "time.sleep(9)"], frames=[["a.py", 9, "g"]])
    fold.add_events(story.events)
    cause = Cause(node="node-1", rank=1, kind="hang", message="rank 1 sleeps")
    hang = fold.take(report=a_report(verdict="hung", cause=cause), is_over=True)["now"]["hang"]

    assert (hang["rank"], hang["place"]) == (1, ["a.py", 9])
    assert [(each["rank"], each["is_culprit"], each["waits_in"]) for each in hang["ranks"]] == [
        (1, True, ""),
        (0, False, "all_reduce #3"),
    ]


def test_a_long_run_is_thinned_and_the_page_says_so() -> None:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=0.0, kind="started")])
    fold.add_spans(Span(0, "forward", float(step), 0.5 if step == 7 else 0.01, step) for step in range(100))
    fold.add_events(metric(1.0, 0, step=step, loss=1.0) for step in range(100))
    fold.add_events(an_event("log", 1.0, rank=0, line="x" * 76) for _ in range(100))
    message = thin(fold.take(report=a_report(), is_over=True), most_spans=50, most_points=10, most_log_bytes=1000)

    assert [span[4] for span in message["spans"]] == sorted([7, *range(0, 100, 2)])
    assert len(message["metrics"]) == 10
    assert len([rank for rank, *_ in message["logs"] if rank == 0]) == 10
    assert len(message["now"]["left_out"]) == 2


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "\x1b[31m[rank0]: "])  # as torch's launcher prints it
def test_a_report_without_some_lines_keeps_problems_and_the_first_and_last_lines_and_marks_gaps(prefix: str) -> None:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=0.0, kind="started")])
    lines = [f"line {number}" for number in range(3000)]
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "ZeroDivisionError: no"]
    lines[1000:1000] = [*(prefix + line for line in traceback), "then"]
    fold.add_events(an_event("log", float(number), rank=0, line=line) for number, line in enumerate(lines))
    message = thin(fold.take(report=a_report(), is_over=True), most_spans=1, most_points=1, most_log_bytes=80_000)
    kept = [line for rank, line, _ in message["logs"] if rank == 0]

    assert kept[:500] == lines[:500]
    assert kept[500:503] == lines[1000:1003]
    assert kept[503:] == lines[-len(kept[503:]) :]
    gaps = [line for rank, line, _ in message["logs"] if rank == -1]
    assert [int(gap.split()[0]) for gap in gaps] == [500, 3004 - 1003 - len(kept[503:])]


def test_a_collective_that_only_the_end_of_a_fault_let_go_on_was_a_wait_for_the_rank_that_it_held() -> None:
    plan = a_plan(nodes=2)
    fold = PageFold(plan)
    story = Story(plan)
    story.events[0] = Event(t=1.0, kind="started")
    story.starts(1.0, 0, 1).round(2.0, 0, 1).fault(4.0, "f", "pause", 1).heals(6.0, "f")
    fold.add_events(story.events)
    ended_before = Span(0, "moving", 3.0, 2.0, 6, "all_reduce #1")
    fold.add_spans([ended_before, *(Span(rank, "moving", 3.0, 4.0, 7, "all_reduce #2") for rank in (0, 1))])
    message = fold.take(report=None, is_over=False)

    assert [(rank, KINDS[kind], began, lasted, late) for rank, kind, began, lasted, _, _, late in message["spans"]] == [
        (0, "moving", 2_000_000, 2_000_000, None),
        (0, "moving", 2_000_000, 1_050_000, None),
        (0, "waiting", 3_050_000, 1_950_000, 1),
        (0, "moving", 5_000_000, 1_000_000, None),
        (1, "moving", 2_000_000, 1_050_000, None),
        (1, "moving", 5_000_000, 1_000_000, None),
    ]
    assert message["now"]["stalls"] == {1: [[3.05, 5.0, False]]}


def _divided(events: list[Event], *spans: Span) -> list[tuple[int, str, float, float, int | None]]:
    """Return rank, kind, begin and duration in seconds, and the late rank of the spans on the page of a run with two nodes."""
    fold = PageFold(a_plan(nodes=2))
    fold.add_events(events)
    fold.add_spans(spans)
    message = fold.take(report=None, is_over=False)
    return [
        (rank, KINDS[kind], began / 1e6, lasted / 1e6, late)
        for rank, kind, began, lasted, _, _, late in message["spans"]
    ]


def test_a_collective_waits_for_a_rank_that_a_signal_stopped() -> None:
    story = Story(a_plan(nodes=2))
    story.events[0] = Event(t=0.0, kind="started")
    story.starts(1.0, 0, 1).round(2.0, 0, 1)
    story.tell(4.0, "halted", 1)
    whole = Span(0, "moving", 3.0, 6.0, 7, "all_reduce #2")
    waited = [(0, "moving", 3.0, 1.0, None), (0, "waiting", 4.0, 5.0, 1)]
    # The rank is already in its next step, which its agent has not noticed.
    assert _divided(story.events, whole) == waited

    story.tell(9.5, "continued", 1)
    ended_long_before, began_later = (
        Span(0, "moving", 3.9, 3.0, 6, "barrier"),
        Span(0, "moving", 9.1, 1.0, 8, "barrier"),
    )
    assert _divided(story.events, whole) == waited
    assert _divided(story.events, ended_long_before, began_later) == [
        (0, "moving", 3.9, 3.0, None),
        (0, "moving", 9.1, 1.0, None),
    ]


def test_no_data_move_through_a_partition() -> None:
    story = Story(a_plan(nodes=2))
    story.events[0] = Event(t=0.0, kind="started")
    story.starts(1.0, 0, 1).round(2.0, 0, 1).fault(3.95, "f", "partition", 1)
    failed = Span(0, "moving", 3.0, 6.0, 7, "all_reduce #2")
    within_a_part = Span(0, "moving", 10.0, 1.0, 8, "all_reduce #3")
    assert _divided(story.events, failed, within_a_part) == [
        (0, "moving", 3.0, 1.0, None),
        (0, "collective", 4.0, 5.0, None),
        (0, "moving", 10.0, 1.0, None),
    ]

    story.heals(8.0, "f")
    assert _divided(story.events, failed) == [
        (0, "moving", 3.0, 1.0, None),
        (0, "collective", 4.0, 4.0, None),
        (0, "moving", 8.0, 1.0, None),
    ]
