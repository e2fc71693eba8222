"""An epoch that goes on from the middle has each sample once, in both parts together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compose_sim.core.checks import PASSED, WARNED, Result
from compose_sim.core.checks.rules.loaders import sampler_tail
from compose_sim.node.records.data import Batch, EpochProgress
from compose_sim.node.records.models import OptimizerStep, TensorHashes, TensorRow, TensorTable
from tests.core.checks.rules.cluster import Records, case, file
from tests.core.checks.rules.loading import epoch, loader

LENGTH, SIZE = 96, 4
BATCH = 2 * SIZE  # of both ranks
ORDER = [(index * 37) % LENGTH for index in range(LENGTH)]
OTHER = [(index * 29 + 5) % LENGTH for index in range(LENGTH)]
THIRD = [(index * 53 + 1) % LENGTH for index in range(LENGTH)]


def part(rank: int, order: Sequence[int], number: int, *, exhausted: bool = True, optimizer: int = 0) -> Records:
    """Return a passage of one rank, with a step after each batch."""
    found: Records = []
    for each in epoch(order[rank::2], number=number, size=SIZE, exhausted=exhausted):
        found.append(each)
        if isinstance(each, Batch):
            found.append(OptimizerStep(1, optimizer, each.batch + 1))
    return found


def judged(first: Sequence[int], second: Sequence[int], *, between: Records, saved: int | None = None) -> Result:
    """Judge a whole epoch, the first part of the next one, what is between, and a second part; `saved` after so many batches."""
    notes = {}
    for rank in (0, 1):
        begun = part(rank, first, 1, exhausted=False)
        if saved is not None and rank == 0:
            begun.insert(1 + 2 * saved, file("write"))
        notes[rank] = [
            loader(length=LENGTH, batch_size=SIZE),
            *part(rank, OTHER, 0),
            *begun,
            *between,
            *part(rank, second, 2, optimizer=1),
        ]
    return sampler_tail.judge(case(notes))


@pytest.mark.parametrize(
    ("begins", "status"), [(0, PASSED), (24, WARNED), (48, PASSED), (72, PASSED), (60, PASSED), (36, PASSED)]
)
def test_the_second_part_is_what_the_first_left_over(begins: int, status: str) -> None:
    assert judged(ORDER[:48], ORDER[begins:], between=[file("read")], saved=6).status == status


def test_the_detail_counts_what_is_repeated_or_left_out() -> None:
    again = judged(ORDER[:48], ORDER[24:], between=[file("read")], saved=6)
    assert (
        "resumed from model.pt (train.py, line 9) after 6 batches of each rank, drew 24 samples again" in again.detail
    )
    assert "left out 32 samples" in judged(ORDER[:32], ORDER[64:], between=[file("read")], saved=4).detail


def test_steps_after_the_checkpoint_are_rightly_made_again() -> None:
    assert judged(ORDER[:48], ORDER[16:], between=[file("read")], saved=2).status == PASSED


def test_an_epoch_may_begin_again_or_be_followed_by_another() -> None:
    for second in (ORDER, THIRD):
        assert judged(ORDER[:48], second, between=[file("read")], saved=6).status == PASSED


def test_a_part_of_the_data_may_follow() -> None:
    assert judged(ORDER[:48], THIRD[:24], between=[file("read")], saved=6).status == PASSED


def test_without_a_resumption_an_epoch_may_be_short() -> None:
    assert judged(ORDER[:32], ORDER[64:], between=[], saved=4).status == WARNED  # a new optimizer
    notes = {
        rank: [
            loader(length=LENGTH, batch_size=SIZE),
            *part(rank, OTHER, 0),
            *part(rank, ORDER[:32], 1, exhausted=False),
            *part(rank, ORDER[64:], 2),
        ]
        for rank in (0, 1)
    }
    assert sampler_tail.judge(case(notes)).status == PASSED


def test_epochs_of_a_curriculum_are_not_equally_long() -> None:
    notes = {
        rank: [
            loader(length=LENGTH, batch_size=SIZE),
            *part(rank, OTHER[:48], 0),
            *part(rank, ORDER[:32], 1, exhausted=False),
            *part(rank, ORDER[32:72], 2, optimizer=1),
            *part(rank, THIRD, 3, optimizer=1),
        ]
        for rank in (0, 1)
    }
    assert sampler_tail.judge(case(notes)).status == PASSED


@pytest.mark.parametrize(("weights", "status"), [("2", PASSED), ("of another model", WARNED)])
def test_weights_tell_how_far_a_state_in_memory_goes_back(weights: str, status: str) -> None:
    table = (TensorRow("parameter", 0, "weight"),)
    notes = {}
    for rank in (0, 1):
        begun: Records = [TensorTable(0, 0, table)]
        for each in part(rank, ORDER[:48], 1, exhausted=False):
            if isinstance(each, OptimizerStep):
                begun.append(TensorHashes(0, each.nth - 1, 0, (str(each.nth - 1),)))
            begun.append(each)
        resumed = part(rank, ORDER[16:], 2, optimizer=1)
        resumed[2:2] = [TensorTable(1, 0, table), TensorHashes(1, 0, 0, (weights,))]
        notes[rank] = [loader(length=LENGTH, batch_size=SIZE), *part(rank, OTHER, 0), *begun, *resumed]
    assert sampler_tail.judge(case(notes)).status == status


def test_what_was_drawn_with_replacement_is_not_compared() -> None:
    twice = [index // 2 for index in ORDER]
    assert judged(twice[:48], twice[24:], between=[file("read")], saved=6).status == PASSED


def test_a_run_that_breaks_off_is_survived() -> None:
    notes = {rank: [loader(length=LENGTH), EpochProgress(0, 0, "begun"), file("read")] for rank in (0, 1)}
    assert sampler_tail.judge(case(notes)).status != WARNED
