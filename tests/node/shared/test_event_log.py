"""The time of a run, with a wall clock that the test sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compose_sim.engine.run_folder.folder import RunFolder, begin_clock
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.node.shared.event_log import RunClock, clock_of


def test_setting_the_machines_clock_changes_only_the_lag() -> None:
    wall, passed = 1000.0, 50.0
    clock = RunClock(950.0, wall=lambda: wall, monotonic=lambda: passed)
    assert (clock.now(), clock.lag()) == (1000.0, 0.0)

    wall, passed = 1010.0 - 7200.0, 60.0
    assert (clock.now(), clock.lag()) == (1010.0, -7200.0)


def test_all_processes_of_a_run_read_the_same_clock(tmp_path: Path) -> None:
    begin_clock(SafeFolder(tmp_path))
    in_a_node = clock_of(tmp_path)
    assert RunFolder(tmp_path).clock == in_a_node
    assert in_a_node.lag() == pytest.approx(0.0, abs=1.0)


def test_the_clock_of_another_machine_is_not_read() -> None:
    text = str(replace(RunClock.begin(), ahead=5.0))
    assert RunClock.parse(text).ahead == 5.0
    other = text.replace(text.partition(" ")[2], "00000000-1111-2222-3333-444444444444")
    assert RunClock.parse(other).lag() == pytest.approx(0.0, abs=1.0)


@pytest.mark.parametrize("text", ["", "nonsense", "x y"])
def test_a_damaged_clock_is_replaced(text: str) -> None:
    assert RunClock.parse(text).lag() == pytest.approx(0.0, abs=1.0)
