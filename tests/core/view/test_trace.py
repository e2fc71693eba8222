"""A trace has one process per node, in order, and nests spans so that Perfetto shows all of them."""

from __future__ import annotations

import json

from compose_sim.core.events.events import Event
from compose_sim.core.report.report import Cause, FaultReport, RoundReport, Timings
from compose_sim.core.state.timeline import Message, Span
from compose_sim.core.view.page import PageFold
from compose_sim.core.view.trace import Profile, chrome_trace, perfetto_files
from tests.builders import a_plan, a_report
from tests.core.story import Story


def test_a_trace_has_nodes_ranks_collectives_and_faults() -> None:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=50.0, kind="started")])
    fold.add_spans(
        [Span(1, "backward", 51.0, 0.5, 3), Span(1, "waiting", 51.5, 0.1, 3, "all_reduce #4 (a.py, line 2)", 0)]
    )
    fault = FaultReport(id="fault-1", kind="pause", nodes=("node-1",), text="node-1 paused", begun_s=2.0, healed_s=4.0)
    report = a_report(faults=(fault,), rounds=(RoundReport(generation=0, world_size=2, began_s=0.5),))
    events = chrome_trace(fold.take(report=report, is_over=True))["traceEvents"]

    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "run demo", 2: "node-0", 3: "node-1"}
    backward, waiting = (event for event in events if event["ph"] == "X")
    assert (backward["name"], backward["ts"], backward["dur"], backward["pid"]) == ("backward", 1_000_000, 500_000, 3)
    assert (waiting["name"], waiting["args"]["waits for rank"]) == ("waits for rank 0 · all_reduce", 0)
    assert backward["tid"] != waiting["tid"]
    assert [(event["ph"], event["ts"]) for event in events if event.get("cat") == "fault"] == [("b", 2e6), ("e", 4e6)]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["round 1: 2 ranks"]


def test_arrows_lead_from_send_to_receive_and_each_node_is_a_file_of_its_own() -> None:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=50.0, kind="started")])
    fold.add_spans([Span(0, "moving", 51.0, 0.1, 3, "send (a.py, line 2)"), Span(1, "moving", 51.0, 0.2, 3, "recv")])
    content = {
        "baseTimeNanoseconds": 0,
        "traceEvents": [{"ph": "X", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 51e6, "dur": 5.0}],
    }
    seen = fold.take(report=a_report(timings=Timings(started_at=50.0)), is_over=True)
    trace = chrome_trace(seen, [Message(0, 51.0, 1, 51.2), Message(0, 51.2, 1, 51.2)], [Profile(1, "node-1", content)])
    arrows = [(each["ph"], each["pid"], each["ts"], each["id"]) for each in trace["traceEvents"] if each["ph"] in "sf"]

    assert arrows == [("s", 2, 1_000_000, 1), ("f", 3, 1_199_999, 1)]
    files = perfetto_files(trace)
    assert files["manifest"].startswith('{"perfetto_manifest"')
    listed = json.loads(files.pop("manifest"))["perfetto_manifest"]["files"]
    assert [(each["path"], each["machine"]["name"]) for each in listed] == [
        (f"{name}.json", name) for name in ("run demo", "node-0", "node-1")
    ]
    assert [each.get("clocks") for each in listed][1:] == [{"sync_to": {"file": "run demo.json"}, "offset_ns": 0}] * 2
    assert set(files) == {each["path"] for each in listed}
    on_node_1 = [each["name"] for each in json.loads(files["node-1.json"])["traceEvents"] if each["ph"] == "X"]
    assert on_node_1 == ["moving · recv", "aten::mm"]


def test_spans_of_a_thread_follow_or_contain_one_another() -> None:
    fold = PageFold(a_plan(nodes=1))
    fold.add_events([Event(t=0.0, kind="started")])
    spans = [
        (1.0, 0.5),
        (1.1, 0.1),
        (1.499999, 0.2),
        (1.6, 0.3),
    ]  # one inside, one that rounding moves, one of another thread
    fold.add_spans(Span(0, "backward", began, lasted, 1) for began, lasted in spans)
    events = [each for each in chrome_trace(fold.take(report=a_report(), is_over=True))["traceEvents"] if "ts" in each]

    assert [(each["ph"], each["ts"], each.get("dur")) for each in events] == [
        *(("X", 1_000_000, 499_999), ("X", 1_100_000, 100_000), ("X", 1_499_999, 200_000)),
        *(("b", 1_600_000, None), ("e", 1_900_000, None)),
    ]


def test_flows_lead_from_the_late_rank_to_those_that_waited_for_it() -> None:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=50.0, kind="started")])
    what = "all_reduce #4 (a.py, line 2)"
    moves = [Span(rank, "moving", 51.5, 0.1, 3, what) for rank in range(2)]
    fold.add_spans([Span(0, "waiting", 51.0, 0.5, 3, what, 1), *moves, Span(1, "moving", 52.0, 1e-8, 4, "barrier #5")])
    events = chrome_trace(fold.take(report=a_report(), is_over=True))["traceEvents"]

    flows = [(each["ph"], each["pid"], each["ts"]) for each in events if each["ph"] in "sf"]
    assert flows == [("s", 3, 1_500_000), ("f", 2, 1_499_999)]
    assert all(each["dur"] >= 1 for each in events if each["ph"] == "X")
    threads = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert threads.isdisjoint({event["pid"] for event in events})


def test_the_track_of_the_cause_of_a_hang_says_what_it_does_from_when_others_waited() -> None:
    plan = a_plan(nodes=2)
    story = Story(plan).starts(1.0, 0, 1).round(2.0, 0, 1)
    story.events[0] = Event(t=1.0, kind="started")
    story.tell(20.0, "stalled", 0, since_s=15.0, waiting_in="all_reduce #3", frames=[["a.py", 3, "f"]])
    story.tell(
        20.0, "stalled", 1, since_s=15.0, doing="sleeping", place=["a.py", 9, "g", ""], frames=[["a.py", 9, "g"]]
    )
    story.tell(30.0, "rank-exited", 0, exit_code=None, signal=15)
    fold = PageFold(plan)
    fold.add_events(story.events)
    cause = Cause(node="node-1", rank=1, kind="hang", message="rank 1 sleeps")
    message = fold.take(report=a_report(verdict="hung", cause=cause), is_over=True)
    events = chrome_trace(message)["traceEvents"]

    (stuck,) = (each for each in events if each.get("cat") == "hang")
    assert (stuck["pid"], stuck["ts"], stuck["dur"]) == (3, 4_000_000, 25_000_000)
    assert "a.py, line 9" in stuck["name"]
    (mark,) = (each for each in events if each["ph"] == "i")
    assert mark["ts"] == 4_000_000
