"""What comes after parsing: of any valid records of two ranks, the report, the page, the trace and JUnit XML can be made."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from compose_sim.core.events.observations import parse_rank
from compose_sim.core.report.ci import junit
from compose_sim.core.report.report import Report
from compose_sim.core.state.fold import fold_all
from compose_sim.core.view.trace import chrome_trace, perfetto_files
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import build_report
from compose_sim.node.records import KINDS
from compose_sim.node.records.record import Moment
from compose_sim.view.bundle import report_page
from compose_sim.view.reader import PageReader
from tests.builders import a_plan
from tests.core.story import Story
from tests.fuzz.strategies import fuzz

_LARGE = 1 << 63
_TEXTS = st.sampled_from(
    ["", "0", "weight", "/home/ada/project/train.py", "all_reduce", "0>1", "a\nb", "\x1b[2J", "x" * 300]
)
_NUMBERS = st.integers(-1, 4) | st.sampled_from([-_LARGE, _LARGE, 10**15])
_FLOATS = st.sampled_from([0.0, -1.0, 0.5, 1.0, 1e-320, 1e308, -1e308, float("inf"), float("nan")])
_MOMENTS = st.sampled_from([0.0, -1e10, 5.0, 6.5, 1e10, 9.9e10])


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of JSON that a field of this type takes."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return records_of(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([st.none() if each is type(None) else values_of(each) for each in arguments])
    if origin is dict:
        return st.dictionaries(_TEXTS, values_of(arguments[1]), max_size=2)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments)).map(list)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        return st.tuples(*map(values_of, get_type_hints(hint).values())).map(list)
    if hint is Moment:
        return _MOMENTS
    return {bool: st.booleans(), int: _NUMBERS, float: _FLOATS, str: _TEXTS}[hint]


def records_of(kind: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    hints = get_type_hints(kind)
    own = [each for each in fields(kind) if each.init]
    needed = {each.name for each in own if each.default is MISSING and each.default_factory is MISSING}
    strategies = {each.name: values_of(hints[each.name]) for each in own}
    return st.fixed_dictionaries(
        {name: each for name, each in strategies.items() if name in needed},
        optional={name: each for name, each in strategies.items() if name not in needed},
    )


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Lines of the observations of one rank, of which some kinds are frequent."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    found = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(kinds))
        values = draw(records_of(KINDS[kind]))
        found.append(json.dumps({"kind": kind, "t": draw(_MOMENTS), **values}))
    return found


@fuzz(first=lines(), second=lines())
def test_any_valid_records_become_a_report(tmp_path: Path, first: list[str], second: list[str]) -> None:
    assert parse_rank("node-0", 0, first).dropped == 0
    plan = a_plan(nodes=2)
    story = Story(plan).starts(1.0, 0, 1).round(2.0, 0, 1).trains(3.0, 1, 3)
    folder = RunFolder(tmp_path)
    (tmp_path / "observations").mkdir(exist_ok=True)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    for rank, written in enumerate((first, second)):
        (tmp_path / "observations" / f"node-{rank}.{rank}.0.jsonl").write_text("\n".join(written) + "\n")
    report = build_report(folder, plan, fold_all(plan, story.events), output={})
    text = json.dumps(report.to_dict())
    (tmp_path / "report.json").write_text(text)

    assert {check.status for check in report.checks}
    assert isinstance(folder.read_report(), Report), "what is written can be read again"
    junit(report).encode()
    reader = PageReader(folder)
    message = reader.read()
    reader.close()
    report_page(message).encode()
    trace = chrome_trace(message, reader.sent, ())
    json.dumps(trace)
    perfetto_files(trace)
