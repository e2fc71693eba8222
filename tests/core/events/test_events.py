"""Whatever a rank writes into an event file or prints is an event or ignored: it raises nothing, and never acts on a terminal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compose_sim.core.events.events import DATA, KINDS, Event, parse_event, parse_metric, printable, read_object
from compose_sim.core.state.fold import fold
from compose_sim.core.state.state import initial_state
from compose_sim.core.verdict.verdict import is_over, judge, reason_to_stop
from tests.builders import ROOT, a_plan

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    **{
        int: st.integers(-2, 3) | st.integers(-(1 << 63), 1 << 63),
        str: st.sampled_from(["", "done", "node-0", "master"]),
    },
    **{
        bool: st.booleans(),
        list: st.lists(JSON, max_size=4),
        dict: st.dictionaries(st.text(max_size=3), JSON, max_size=2),
    },
}


def of_type(wanted: Any) -> st.SearchStrategy[Any]:
    """Values that are valid for the type."""
    if isinstance(wanted, tuple) and wanted[0] == "list":
        return st.lists(of_type(wanted[1]), max_size=3)
    if isinstance(wanted, tuple) and wanted[0] == "row":
        return st.tuples(*(of_type(each) for each in wanted[1:])).map(list)
    if isinstance(wanted, tuple) and wanted[0] == "fields":
        return st.fixed_dictionaries({}, optional={name: of_type(each) for name, each in wanted[1].items()})
    if isinstance(wanted, tuple) and wanted[0] == "dict":
        return st.dictionaries(st.sampled_from(["0", "1", "x"]), of_type(wanted[1]), max_size=3)
    return st.floats() | st.integers(-1, 5) if isinstance(wanted, tuple) else _BY_TYPE[wanted]


@st.composite
def lines(draw: st.DrawFn) -> str:
    """An event of a known kind, with most fields of the right type."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    fields = DATA.get(kind, {})
    data = {
        name: draw(st.none() | of_type(wanted) | st.just(None))
        for name, wanted in fields.items()
        if draw(st.booleans())
    }
    event = {
        "t": draw(st.floats(0, 2e9) | st.integers(-5, 5) | JSON),
        "kind": kind,
        "node": draw(st.sampled_from(["node-0", "node-1", "master", "driver", "composesim", None]) | JSON),
        "rank": draw(st.sampled_from([0, 1, 2, None]) | JSON),
        "generation": draw(st.sampled_from([0, 1, None]) | JSON),
        "data": draw(st.just(data) | JSON),
    }
    return json.dumps(event)


@given(st.lists(lines(), max_size=12))
@settings(max_examples=400)
def test_no_sequence_of_events_breaks_state_or_verdict(written: list[str]) -> None:
    plan = a_plan()
    state = initial_state(plan)
    for line in written:
        event = parse_event(line)
        if event:
            state = fold(state, event)
        reason_to_stop(state, plan, now=1e9)
    is_over(state)
    judge(state)


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")) | JSON.map(json.dumps))
def test_no_line_raises(line: str) -> None:
    assert isinstance(parse_event(line), Event | None)
    assert isinstance(parse_metric(line), dict | None)


@given(st.text(st.sampled_from("a\x1b[]0;2Jm\x07\r\n\t\x9b\x9d\\P^_\x00\ud800"), max_size=40))
def test_text_cannot_act_on_a_terminal(text: str) -> None:
    shown = printable(text)

    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\ud800-\udfff]", shown)
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", shown)
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b]52;c;cHduZWQ=\x07after", "after"),
        ("\x1b]0;title\x1b\\after", "after"),
        (" 10%\r 20%\r 30%", " 30%"),
        ("windows\r\n", "windows\n"),
        ("ok \r✔ passed  forged", "✔ passed  forged"),
    ],
)
def test_colors_and_the_last_state_of_a_line_remain(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    "line", ['{"a": NaN}', '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}", "[" * 100_000, "[1]", "x" * (1 << 21)]
)
def test_what_json_does_not_have_is_no_object(line: str) -> None:
    assert read_object(line) is None


def test_a_metric_keeps_its_nan_as_text() -> None:
    assert parse_metric('{"step": 3, "loss": NaN}') == {"step": 3, "loss": "NaN"}


@pytest.mark.parametrize("data", [[1], "text", {"exit_code": "0"}, {"exit_code": True}, {"signal": [9]}])
def test_an_event_with_a_field_of_the_wrong_type_is_ignored(data: Any) -> None:
    line = {"t": 1.0, "kind": "rank-exited", "node": "node-0", "rank": 0, "generation": 0, "data": data}

    assert parse_event(json.dumps(line)) is None


def test_every_field_that_is_read_of_events_has_a_type() -> None:
    """A rank can write events into its node's file: what has no type may be anything."""
    folders = [ROOT / "compose_sim" / "core" / name for name in ("state", "verdict", "report", "view")]
    read = {
        (file.name, name)
        for folder in folders
        for file in folder.glob("*.py")
        for name in re.findall(r"\b(?:data|stall|dump)(?:\.get\(|\[)\"(\w+)\"", file.read_text())
    }
    known = re.findall(r"'(\w+)':", repr({**DATA}))

    assert len(read) > 50
    assert {(file, name) for file, name in read if name not in known} == set()


@pytest.mark.parametrize("kind", [[], {}, 1, None])
def test_a_kind_that_is_no_text_is_no_event(kind: Any) -> None:
    assert parse_event(json.dumps({"v": 1, "t": 1.0, "node": "node-0", "kind": kind, "data": {}})) is None
