"""A run that is read from its folder alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from compose_sim.core.checks import Case, Result, run
from compose_sim.core.checks.run import BY_ID, run_checks
from compose_sim.core.events.events import Event
from compose_sim.core.events.observations import Observed
from compose_sim.engine.run_folder import record
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.judging_time import judging_time
from compose_sim.engine.run_folder.record import build_report, read_state
from compose_sim.errors import OutOfTimeError
from compose_sim.node.shared.progress_page import ProgressPage
from tests.builders import a_plan


def begun(generation: int) -> str:
    """What the master reports about a round of two nodes."""
    data = {"world_size": 2, "nodes": ["node-0", "node-1"]}
    event = Event(t=float(generation), kind="round", node="master", generation=generation, data=data)
    return event.to_json("train") + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """The folder of a run of two nodes that has begun."""
    folder = RunFolder(tmp_path / ".composesim" / "runs" / "train")
    folder.claim()
    folder.clear(-1, -1)
    folder.write_plan(a_plan(nodes=2))
    yield folder
    folder.release()


def test_the_steps_of_ranks_that_were_killed_are_read_from_their_pages(folder: RunFolder) -> None:
    for generation, steps in enumerate((7, 12)):
        page = ProgressPage(folder.path, "node-0", 0, generation)
        for _ in range(steps):
            page.advance("steps")
    (folder.path / "events" / "master.jsonl").write_text(begun(0) + begun(1))
    (folder.path / "observations" / "node-1.1.0.progress").write_bytes(b"torn")
    for name in ("node-1.0.1", "node-1.1.9"):  # node-1 claims a rank of another node, and a round that nobody began
        shutil.copy(
            folder.path / "observations" / "node-0.0.1.progress", folder.path / "observations" / f"{name}.progress"
        )

    _, state = read_state(folder)

    assert {name: node.steps for name, node in state.nodes.items()} == {"node-0": 19, "node-1": 0}


def test_a_run_that_left_too_much_to_judge_has_a_report_that_says_so(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "events" / "master.jsonl").write_text(begun(0))
    plan, state = read_state(folder)
    observed = {"v": 1, "kind": "script-end", "rank": 0}
    (folder.path / "observations" / "node-0.0.0.jsonl").write_text(200_000 * (json.dumps(observed) + "\n"))
    monkeypatch.setattr(record, "judging_time", partial(judging_time, 0.05))

    report = build_report(folder, plan, state, output={})

    assert report.checks == ()
    assert str(OutOfTimeError()) in report.notes


def test_a_check_that_takes_too_long_is_given_up_and_the_verdict_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge_for_ever(_: Case) -> Result:
        while True:
            pass

    slow = replace(BY_ID["set-epoch"], rule=judge_for_ever, preconditions=())
    monkeypatch.setattr(run, "find_check", lambda name: slow if name == "set-epoch" else BY_ID[name])
    case = Case(observed=Observed(ranks={}), verdict="passed", cause=None)

    with judging_time(0.05):
        results = run_checks(case, only=("set-epoch", "hang"))

    assert {each.id: each.detail == str(OutOfTimeError()) for each in results} == {"set-epoch": True, "hang": False}
