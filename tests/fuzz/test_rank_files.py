"""What a rank writes into the run's folder, or sends through the debugger's socket, neither stops nor misleads whoever reads it."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from compose_sim.core.events.events import DATA, KINDS_OF
from compose_sim.core.state.fold import fold
from compose_sim.core.state.state import initial_state
from compose_sim.core.verdict.hang import find_hang
from compose_sim.core.verdict.verdict import judge, reason_to_stop
from compose_sim.engine.lifetime.attach import BreakpointWatch, relay
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import build_report
from compose_sim.node.rank.debugging.debugger import _SocketFile
from tests.builders import a_plan
from tests.fuzz.strategies import damaged, fuzz, lines_of

_TEXTS = st.sampled_from(["", "node-0", "node-1", "begun", "done", "waiting", "released", "kill", "gloo", "x", "1"])
_NUMBERS = st.integers(-1, 3)


def of_type(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of a type of `DATA`."""
    match wanted:
        case ("list", inner):
            return st.lists(of_type(inner), max_size=2)
        case ("dict", inner):
            return st.dictionaries(_TEXTS, of_type(inner), max_size=2)
        case ("row", *inner):
            return st.tuples(*map(of_type, inner)).map(list)
        case ("fields", inner):
            return fields(inner)
    return _TEXTS if wanted is str else st.booleans() if wanted is bool else _NUMBERS


def fields(wanted: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: of_type(inner) for name, inner in wanted.items()})


@st.composite
def event_line(draw: st.DrawFn) -> str:
    """A line that a node may write, or nearly."""
    kind = draw(st.sampled_from(sorted(KINDS_OF["node"])))
    envelope = {"v": 1, "t": draw(_NUMBERS), "node": "node-0", "rank": draw(st.none() | _NUMBERS)}
    event = {
        **envelope,
        "generation": draw(st.none() | _NUMBERS),
        "kind": kind,
        "data": draw(fields(DATA.get(kind, {}))),
    }
    return draw(lines_of(event)) if draw(st.integers(0, 3)) == 0 else json.dumps(event)


@fuzz(lines=st.lists(event_line(), max_size=8), log=st.lists(lines_of({"step": 1, "loss": 0.5}), max_size=3))
def test_events_of_a_node(tmp_path: Path, lines: list[str], log: list[str]) -> None:
    for name, text in {"events/node-0.jsonl": lines, "logs/node-0.0.log": log}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(text), errors="replace")
    plan = a_plan(nodes=2)
    tail = EventTail(tmp_path, plan)
    state = initial_state(plan)
    with closing(tail):
        for event in chain.from_iterable(tail.finish()):
            state = fold(state, event)
            find_hang(state, plan, now=5.0)
            reason_to_stop(state, plan, now=5.0)

    assert judge(state).word != "passed"  # a node cannot say that the run has ended
    json.dumps(build_report(RunFolder(tmp_path), plan, state, output={}).to_dict()).encode()


@fuzz(
    data=st.binary(max_size=200)
    | st.lists(st.sampled_from([b"\n", b"\xff", b"c\n", b"p 1\n", b"x" * 9000])).map(b"".join)
)
def test_bytes_typed_at_a_debugger(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours):
        terminal = _SocketFile()
        terminal._link = ours
        with closing(theirs):
            theirs.sendall(data)
        lines = iter(terminal.readline, "")

        assert sum(1 for _ in lines) == data.count(b"\n")
        assert terminal.write("(Pdb) ") == 6  # to nobody


@fuzz(
    data=st.binary(max_size=200) | st.sampled_from([b"(Pdb) ", b"\x1b]52;c;\x07", b"\xff\xfe", b"\n" * 500]),
    typed=damaged(["n\n"]),
)
def test_bytes_sent_by_a_debugger(tmp_path: Path, data: bytes, typed: Any) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    os.write(writer, json.dumps(typed)[:200].encode())
    os.close(writer)
    with closing(ours), closing(theirs):
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        shown: list[str] = []
        relaying = threading.Thread(target=relay, args=(ours, reader, shown.append, BreakpointWatch(tmp_path, 0)))
        relaying.start()
        relaying.join(20)
        assert not relaying.is_alive()
    os.close(reader)
