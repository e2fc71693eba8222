"""A shuffled order that is repeated in the next epoch fails; one that is not shuffled does not."""

from __future__ import annotations

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.loaders import set_epoch
from compose_sim.node.records.data import Sampling
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import at, case, file
from tests.core.checks.rules.loading import LINE, epoch, loader
from tests.core.checks.rules.replicas import step

ORDER = [6, 1, 4, 0, 7, 3, 2, 5]


def test_the_same_order_again_fails() -> None:
    result = set_epoch.judge(case({0: [loader(), *epoch(ORDER), *epoch(ORDER, number=1)]}))
    assert result.status == FAILED
    assert "epochs 0 and 1 of the loader of Pictures (train.py, line 12) drew the same 8 samples" in result.detail
    assert "sampler.set_epoch(epoch)" in result.fix


def test_the_same_order_again_fails_if_an_epoch_is_cut_short() -> None:
    long = [*ORDER, *range(8, 16)]
    assert set_epoch.judge(case({0: [loader(), *epoch(long), *epoch(ORDER, number=1)]})).status == FAILED
    assert set_epoch.judge(case({0: [loader(), *epoch(ORDER), *epoch(long, number=1)]})).status == FAILED
    assert set_epoch.judge(case({0: [loader(), *epoch(long), *epoch(ORDER[::-1], number=1)]})).status == PASSED
    one_batch = epoch(ORDER, number=0, size=8)
    assert set_epoch.judge(case({0: [loader(), *one_batch, *epoch(long, number=1)]})).status == PASSED


def test_another_order_passes() -> None:
    assert set_epoch.judge(case({0: [loader(), *epoch(ORDER), *epoch(ORDER[::-1], number=1)]})).status == PASSED


def test_samples_in_their_own_order_pass() -> None:
    assert set_epoch.judge(case({0: [loader(), *epoch(range(8)), *epoch(range(8), number=1)]})).status == PASSED


def test_padding_at_the_end_of_a_share_is_no_shuffled_order() -> None:
    padded = [1, 3, 5, 7, 9, 11, 13, 0]
    notes = [loader(sampling=Sampling(num_replicas=2, shuffle=False, seed=0)), *epoch(padded), *epoch(padded, number=1)]
    result = set_epoch.judge(case({0: notes}))
    assert (result.status, result.detail) == (PASSED, "samples are not shuffled")


def test_one_epoch_or_an_evaluation_is_not_judged() -> None:
    assert set_epoch.judge(case({0: [loader(), *epoch(ORDER)]})).status == NOT_APPLICABLE
    evaluated = [*epoch(ORDER, trained=False), *epoch(ORDER, number=1, trained=False)]
    assert set_epoch.judge(case({0: [loader(), *evaluated]})).status == NOT_APPLICABLE


def test_a_curriculum_passes() -> None:
    fixed = loader(samplers=("BatchSampler", "Curriculum"), set_epoch=False)
    assert set_epoch.judge(case({0: [fixed, *epoch(ORDER), *epoch(ORDER, number=1)]})).status == PASSED


def test_a_second_training_that_begins_at_epoch_0_passes() -> None:
    def notes(second: int) -> list[Record]:
        return [loader(), *epoch(ORDER), step(1), *epoch(ORDER, number=1), step(2, second)]

    assert set_epoch.judge(case({0: notes(1)})).status == NOT_APPLICABLE
    assert set_epoch.judge(case({0: notes(0)})).status == FAILED


@pytest.mark.parametrize(
    ("loaded", "third", "status"),
    [
        (file("read"), ORDER, WARNED),
        (file("read", "/work/pretrained.pt"), ORDER, PASSED),  # the run has not written it
        (file("read"), ORDER[2:] + ORDER[:2], PASSED),
    ],
)
def test_a_training_that_goes_on_from_a_checkpoint_repeats_no_epoch(
    loaded: Record, third: list[int], status: str
) -> None:
    first = [*epoch(ORDER), step(1), *epoch(ORDER[::-1], number=1), step(2), file("write")]
    second = [loaded, *epoch(third, number=2), step(3, 1)]
    result = set_epoch.judge(case({0: [loader(), *first, *second]}))

    assert (result.status, at(result)) == (status, LINE if status == WARNED else None)


def test_an_order_that_comes_back_after_another_warns() -> None:
    notes = [loader(), *epoch(ORDER), *epoch(ORDER[::-1], number=1), *epoch(ORDER, number=2)]
    assert set_epoch.judge(case({0: notes})).status == WARNED
