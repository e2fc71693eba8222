"""Test how long the loss of a node is expected."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compose_sim.engine.run_folder.control_requests import ExpectedLosses
from tests.builders import an_event


@pytest.fixture
def losses(tmp_path: Path) -> ExpectedLosses:
    return ExpectedLosses(tmp_path)


def marked(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "control" / "absent").iterdir())


def test_a_mark_is_removed_when_a_round_has_the_node_again(losses: ExpectedLosses, tmp_path: Path) -> None:
    losses.expect(["node-1", "node-2"])
    losses.returning(["node-1"], started=True)
    now = time.time()

    losses.observe(
        [an_event("round", now - 60, nodes=["node-1", "node-2"]), an_event("round", now + 1, nodes=["node-0"])]
    )
    assert marked(tmp_path) == ["node-1", "node-2"]

    losses.observe([an_event("round", now + 1, nodes=["node-0", "node-1", "node-2"])])
    assert marked(tmp_path) == ["node-2"]


def test_a_node_that_is_lost_again_stays_marked(losses: ExpectedLosses, tmp_path: Path) -> None:
    losses.expect(["node-1"])
    losses.returning(["node-1"], started=True)
    losses.expect(["node-1"])

    losses.observe([an_event("round", time.time() + 1, nodes=["node-1"])])

    assert marked(tmp_path) == ["node-1"]


def test_restore_leaves_earlier_marks_as_they_were(losses: ExpectedLosses, tmp_path: Path) -> None:
    losses.expect(["node-1"])
    losses.returning(["node-1"], started=True)

    losses.restore(losses.expect(["node-1", "node-2"]))

    assert marked(tmp_path) == ["node-1"]
    losses.observe([an_event("round", time.time() + 1, nodes=["node-1"])])
    assert marked(tmp_path) == []
