"""A trace has one process per node, in order, and nests spans so that Perfetto shows all of them."""

from __future__ import annotations

from compose_sim.core.events.events import Event
from compose_sim.core.report.report import FaultReport, RoundReport
from compose_sim.core.state.timeline import Span
from compose_sim.core.view.page import PageFold
from compose_sim.core.view.trace import chrome_trace
from tests.builders import a_plan, a_report


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
    assert names == {0: "run demo", 1: "node-0", 2: "node-1"}
    backward, waiting = (event for event in events if event["ph"] == "X")
    assert (backward["name"], backward["ts"], backward["dur"], backward["pid"]) == ("backward", 1_000_000, 500_000, 2)
    assert (waiting["name"], waiting["args"]["waits for rank"]) == ("all_reduce: waiting", 0)
    assert backward["tid"] != waiting["tid"]
    assert [(event["ph"], event["ts"]) for event in events if event.get("cat") == "fault"] == [("b", 2e6), ("e", 4e6)]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["round 0: 2 ranks"]
