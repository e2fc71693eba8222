"""A rank writes one record per step, and fewer in long runs: the records of all ranks are of the same steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.core.events.observations import parse_rank
from compose_sim.node.rank.observations import Observations
from compose_sim.node.rank.step_times import Times
from compose_sim.node.records.timings import Activity, StepTimes, Wait
from compose_sim.node.shared.event_log import EventLog


@pytest.fixture
def observations(tmp_path: Path) -> Observations:
    return Observations(tmp_path, "node-0", 0, 0)


@pytest.fixture
def times(tmp_path: Path, observations: Observations) -> Times:
    return Times(EventLog(tmp_path, "run", "node-0"), observations)


def written(observations: Observations) -> list[StepTimes]:
    observations.flush()
    return list(parse_rank("node-0", 0, observations.path.read_text().splitlines()).of(StepTimes))


def test_work_and_waits_of_a_step_are_microseconds_since_its_begin(times: Times, observations: Observations) -> None:
    times.work("data", 10.0, 10.5)
    times.wait("all_reduce #1", 10.5, 10.75, "0", 4)
    times.step_ended(1)

    (record,) = written(observations)
    assert (record.step, record.work) == (1, (Activity("data", 0, 500_000),))
    assert record.waits == (Wait("all_reduce #1", 500_000, 250_000, "0", 4, 1),)


def test_waits_are_counted_per_group_even_if_they_are_left_out(times: Times, observations: Observations) -> None:
    for step in range(1, 1021):
        times.wait("barrier #1", 1.0, 2.0, "0", 2)
        times.step_ended(step)
    times.wait("barrier #1", 1.0, 2.0, "1", 2)
    times.write()

    records = written(observations)
    assert [record.step for record in records] == [*range(1, 1001), 1010, 1020]
    assert [wait.sequence for record in records[-2:] for wait in record.waits] == [1010, 1020]


def test_a_wait_begins_when_the_backward_pass_has_computed(times: Times, observations: Observations) -> None:
    times.waits_not_before = 3.0
    times.wait("DDP", 1.0, 4.0, "0", 2)
    times.waits_not_before = float("inf")  # nothing reported the end of computing
    times.wait("DDP", 5.0, 6.0, "0", 2)
    times.step_ended(1)

    (record,) = written(observations)
    assert [(wait.lasted, wait.sequence) for wait in record.waits] == [(1_000_000, 1)]


def test_a_script_without_optimizer_writes_records_as_well(times: Times, observations: Observations) -> None:
    for _ in range(250):
        times.work("data", 1.0, 2.0)

    assert [len(record.work) for record in written(observations)] == [100, 100]


def test_samples_of_one_line_are_joined_and_those_of_steps_that_are_left_out_are_not_kept(
    times: Times, observations: Observations
) -> None:
    for line in (7, 7, 7, 9):
        times.at_line(("train.py", line))
    times.work("forward", 10.0, 10.5)
    times.step_ended(1001)
    times.at_line(("train.py", 7))
    times.work("forward", 11.0, 11.5)
    times.step_ended(1010)

    (record,) = written(observations)
    assert [(each.file, each.line) for each in record.lines] == [("train.py", 7), ("train.py", 9)]
