"""The nodes of a run that has passed are removed while the report is written; if that fails, it is tried again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compose_sim.app.request import read_request
from compose_sim.app.session import Session
from compose_sim.core.events.events import Event
from compose_sim.core.state.state import ClusterState
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.errors import EngineError


class Reluctant(LocalEngine):
    """An engine that fails to remove nodes a number of times, and counts the tries."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures, self.removals = failures, 0

    def remove(self, run: str) -> None:
        self.removals += 1
        if self.removals <= self.failures:
            raise EngineError("the engine is busy")
        super().remove(run)


class Notes:
    """Keeps the lines about the progress of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def progress(self, text: str) -> None:
        self.lines.append(text)

    def waiting(self, what: str) -> None: ...

    def show(self, events: list[Event], state: ClusterState) -> None: ...


@pytest.mark.parametrize("program", [("true",), ("false",)], ids=["passed", "failed"])
@pytest.mark.parametrize("failures", [0, 1])
def test_a_removal_that_fails_is_tried_again(
    program: tuple[str, ...], failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session(read_request({"recipe": "exec", "args": program, "nodes": 2, "engine": "local"}))
    engine, notes = Reluctant(failures), Notes()
    vars(session)["engine"] = engine
    report = session.run(notes)

    assert report.exit_code == (0 if program == ("true",) else 1)
    assert session.folder.files.status("report.json")
    assert engine.removals == failures + 1
    assert session.name not in engine.remaining_runs()
    assert [line.splitlines()[0] for line in notes.lines] == ["the engine is busy"] * failures


def test_nodes_are_removed_although_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with RLIMIT_AS, which does not fail at the same thread in each run."""

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("compose_sim.app.node_removal.Thread", Refused)
    session = Session(read_request({"recipe": "exec", "args": ("true",), "nodes": 2, "engine": "local"}))

    assert session.run(Notes()).exit_code == 0
    assert session.name not in session.engine.remaining_runs()
