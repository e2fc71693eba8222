"""A node that writes ten times as much keeps composesim busy ten times as long, whatever it writes: nothing is quadratic."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from compose_sim.core.events.events import DATA, KINDS_OF
from compose_sim.core.report.make_report import make_report
from compose_sim.core.state.fold import fold_batch
from compose_sim.core.state.state import initial_state
from compose_sim.core.verdict.hang import find_hang
from compose_sim.core.verdict.verdict import reason_to_stop
from compose_sim.core.view.page import PageFold
from compose_sim.engine.run_folder.event_tail import EventTail
from tests.builders import a_plan

FEW, MANY = 500, 5_000
MAX_GROWTH = 40  # linear is 10, quadratic 100
TOO_SHORT_TO_MEASURE_S = 0.5
FORMS = ("alike", "ever new")


def value_of(wanted: Any, number: int) -> Any:
    """Return a value of a type of `DATA`, another one for each number."""
    match wanted:
        case ("list", inner):
            return [value_of(inner, number), value_of(inner, number + 1)]
        case ("dict", inner):
            return {str(number): value_of(inner, number)}
        case ("row", *inner):
            return [value_of(each, number) for each in inner]
        case ("fields", inner):
            return {name: value_of(each, number) for name, each in inner.items()}
    return f"text {number}" if wanted is str else bool(number % 2) if wanted is bool else number


def event_line(kind: str, number: int, form: str) -> str:
    alike = form == "alike"
    data = {name: value_of(wanted, 0 if alike else number) for name, wanted in DATA.get(kind, {}).items()}
    if "logs" in data:
        data["logs"] = {"0": 1_000_000 - number}
    place = {"v": 1, "t": float(number), "run": "demo", "node": "node-0", "rank": 0}
    return json.dumps({**place, "generation": 0 if alike else number, "kind": kind, "data": data})


def seconds_for(folder: Path, kind: str, count: int, form: str) -> float:
    """Return the CPU time to read, fold, show and report that many events, and as many lines of output."""
    for name in ("events", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "events" / "node-0.jsonl").write_text(
        "".join(event_line(kind, each, form) + "\n" for each in range(count))
    )
    (folder / "logs" / "node-0.0.log").write_text("".join(f"line {each}\n" for each in range(count)))
    plan, began = a_plan(nodes=2), time.process_time()
    page, state = PageFold(plan), initial_state(plan)
    with closing(EventTail(folder, plan)) as tail:
        for batch in tail.finish():
            page.add_events(batch)
            for number, event in enumerate(batch):
                state = fold_batch(state, [event])
                if number % 50 == 0:  # a node that writes slowly has each of its lines judged
                    find_hang(state, plan, now=5.0)
                    reason_to_stop(state, plan, now=5.0)
    report = make_report(plan, state)
    json.dumps(page.take(report=report, is_over=True))
    json.dumps(report.to_dict())
    return time.process_time() - began


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", sorted(KINDS_OF["node"]))
def test_time_grows_with_the_number_of_events(tmp_path: Path, kind: str, form: str) -> None:
    many = seconds_for(tmp_path / "many", kind, MANY, form)
    if many > TOO_SHORT_TO_MEASURE_S:
        few = seconds_for(tmp_path / "few", kind, FEW, form)
        assert many < MAX_GROWTH * few
