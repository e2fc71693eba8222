"""How long is a node marked as away on purpose?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compose_sim.engine.run_folder.expected_losses import Marks
from tests.builders import an_event


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path)


def marked(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "orders" / "absent").iterdir())


def test_a_mark_goes_with_the_first_round_that_has_the_node_in_it_again(marks: Marks, tmp_path: Path) -> None:
    marks.add(["node-1", "node-2"])
    marks.returning(["node-1"], started=True)
    now = time.time()

    marks.hear([an_event("round", now - 60, nodes=["node-1", "node-2"]), an_event("round", now + 1, nodes=["node-0"])])
    assert marked(tmp_path) == ["node-1", "node-2"]

    marks.hear([an_event("round", now + 1, nodes=["node-0", "node-1", "node-2"])])
    assert marked(tmp_path) == ["node-2"]


def test_what_is_lost_anew_before_that_stays_marked(marks: Marks, tmp_path: Path) -> None:
    marks.add(["node-1"])
    marks.returning(["node-1"], started=True)
    marks.add(["node-1"])

    marks.hear([an_event("round", time.time() + 1, nodes=["node-1"])])

    assert marked(tmp_path) == ["node-1"]


def test_a_fault_that_came_to_nothing_leaves_marks_as_they_were(marks: Marks, tmp_path: Path) -> None:
    marks.add(["node-1"])
    marks.returning(["node-1"], started=True)

    marks.restore(marks.add(["node-1", "node-2"]))

    assert marked(tmp_path) == ["node-1"]
    marks.hear([an_event("round", time.time() + 1, nodes=["node-1"])])
    assert marked(tmp_path) == []
