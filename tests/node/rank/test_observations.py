"""Records are encoded when they are written: nothing in them may end the script, and forked processes write only their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compose_sim.core.events.observations import parse_rank
from compose_sim.node.rank.observations import Observations
from compose_sim.node.records.models import LossValue, TensorHashes
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import FeatureOff


@pytest.fixture
def observations(tmp_path: Path) -> Observations:
    return Observations(tmp_path, "node-0", 0, 0)


def written(observations: Observations) -> tuple[Record, ...]:
    observations.flush()
    return parse_rank("node-0", 0, observations.path.read_text().splitlines()).records


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_record_that_cannot_be_encoded_is_noted_and_takes_no_other_with_it(observations: Observations) -> None:
    observations.note(LossValue(1.0))
    observations.note(TensorHashes(0, 1, 0, (Unprintable(),)))  # type: ignore[arg-type]
    observations.note(LossValue(float("nan")))

    first, failed, last = written(observations)
    assert isinstance(first, LossValue)
    assert isinstance(last, LossValue)
    assert isinstance(failed, FeatureOff)
    assert failed.feature == "tensor-hashes"
    assert "no text" in failed.traceback


def test_a_forked_process_does_not_write_what_its_parent_has_kept(observations: Observations) -> None:
    observations.note(LossValue(1.0))
    child = os.fork()
    if not child:
        observations.note(LossValue(2.0))
        observations.flush()
        os._exit(0)
    os.waitpid(child, 0)

    assert [each.value for each in written(observations) if isinstance(each, LossValue)] == [2.0, 1.0]
