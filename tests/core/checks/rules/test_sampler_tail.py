"""Samples repeated or left out at the end of a data set warn, if that changes what is learned or measured."""

from __future__ import annotations

import pytest

from compose_sim.core.checks import NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.loaders import sampler_tail
from compose_sim.node.records.process_groups import Collective
from tests.core.checks.rules.cluster import case
from tests.core.checks.rules.loading import epoch, loader

PADDED = {0: [0, 2, 4, 6], 1: [1, 3, 5, 0]}
CUT = {0: [4, 2, 0], 1: [5, 1, 3]}


def test_padding_is_warned_of() -> None:
    result = sampler_tail.judge(case({rank: [loader(length=7), *epoch(share)] for rank, share in PADDED.items()}))
    assert result.status == WARNED
    assert result.detail.startswith("1 sample of 7 used twice in epoch 0")


def test_padding_of_an_evaluation_that_is_gathered_passes() -> None:
    notes = {
        rank: [loader(length=7), *epoch(share, trained=False), Collective("all_gather")]
        for rank, share in PADDED.items()
    }
    assert sampler_tail.judge(case(notes)).status == PASSED


def test_what_an_evaluation_leaves_out_is_warned_of() -> None:
    notes = {rank: [loader(length=7, drop_last=True), *epoch(share, trained=False)] for rank, share in CUT.items()}
    assert sampler_tail.judge(case(notes)).detail.startswith("1 sample of 7 left out in epoch 0")


def test_training_may_leave_out_others_in_every_epoch() -> None:
    notes = {rank: [loader(length=7, drop_last=True), *epoch(share)] for rank, share in CUT.items()}
    assert sampler_tail.judge(case(notes)).status == PASSED


@pytest.mark.parametrize(("second", "status"), [([4, 2, 6], PASSED), ([2, 4, 0], WARNED)])
def test_an_own_sampler_may_leave_out_what_it_draws_in_another_epoch(second: list[int], status: str) -> None:
    notes = {
        rank: [loader(length=7), *epoch(share), *epoch([second, CUT[1]][rank], number=1)] for rank, share in CUT.items()
    }
    assert sampler_tail.judge(case(notes)).status == status


def test_ranks_that_see_everything_share_nothing_out() -> None:
    assert (
        sampler_tail.judge(case({rank: [loader(length=7), *epoch(range(7))] for rank in range(2)})).status
        == NOT_APPLICABLE
    )


def test_samples_that_are_repeated_while_others_are_missed_are_no_tail() -> None:
    shares = {0: [0, 2, 4, 6, 8], 1: [1, 3, 5, 7, 0]}
    assert (
        sampler_tail.judge(case({rank: [loader(length=10), *epoch(share)] for rank, share in shares.items()})).status
        != WARNED
    )
