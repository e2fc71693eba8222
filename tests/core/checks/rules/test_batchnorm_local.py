"""BatchNorm warns if several ranks train it together, each with its own batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.checks import NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.wrapping import batchnorm_local
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.models import LocalBatchNorm, RunningStatistics, SpreadTaken
from compose_sim.node.records.process_groups import Collective
from tests.core.checks.rules.cluster import Records, at, case
from tests.core.checks.rules.loading import loader
from tests.core.checks.rules.replicas import AT, ddp, forward

NORM = LocalBatchNorm(0, ("features.1",), count=3)


def test_its_modules_are_named() -> None:
    result = batchnorm_local.judge(case({rank: [ddp(), forward(), NORM] for rank in range(2)}))
    assert result.status == WARNED
    assert result.detail.startswith("BatchNorm features.1 and 2 more ")
    assert at(result) == ("/work/train.py", 3)


def test_a_group_of_one_rank_sees_the_whole_batch() -> None:
    assert (
        batchnorm_local.judge(case({rank: [ddp((rank,)), forward(), NORM] for rank in range(2)})).status
        == NOT_APPLICABLE
    )


def test_models_without_it_pass() -> None:
    assert batchnorm_local.judge(case({rank: [ddp(), forward()] for rank in range(2)})).status == PASSED


def test_models_that_are_not_called_are_not_judged() -> None:
    assert batchnorm_local.judge(case({rank: [ddp()] for rank in range(2)})).status == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("means", "is_reduced", "status"),
    [
        ((0.25, 0.5), True, WARNED),
        ((0.25, 0.25), True, NOT_APPLICABLE),
        ((0.25, 0.5), False, NOT_APPLICABLE),  # each rank trains its own model
    ],
)
def test_ranks_that_train_together_keep_equal_statistics(
    means: tuple[float, float], is_reduced: bool, status: str
) -> None:
    owns = ((1.0, 2.0, 3.0, 4.0), (2.0, -1.0, 0.0, 1.0))
    shared = (1.5, 0.5, 1.5, 2.5)

    def trained(rank: int) -> Records:
        used = shared if is_reduced else owns[rank]
        step = SketchedStep(0, 1, own=(owns[rank],), used=(used,), before=(shared,), after=(shared,), at=AT)
        statistics = RunningStatistics("RunningMeanStd", 0, 2, (means[rank], 1.0), AT)
        return [SketchedTensors(0, (SketchedTensor(None, "weight", (2, 2)),)), step, statistics]

    assert batchnorm_local.judge(case({rank: trained(rank) for rank in range(2)})).status == status


@pytest.mark.parametrize(
    ("means", "more", "logged", "status"),
    [
        ((-1.5, 0.5), (), "", WARNED),
        ((0.5, 0.5), (), "", NOT_APPLICABLE),  # the same mean everywhere: nothing is left out
        ((-1.5, 0.5), (2.25, 0.25), "", NOT_APPLICABLE),  # the squares of the means are reduced, too
        ((-1.5, 0.5), (1.0, 1.0), "", NOT_APPLICABLE),  # so are those of their distances from the mean of all
        ((-1.5, 0.5), (), "reward spread 2.25", NOT_APPLICABLE),  # a report
    ],
)
def test_the_mean_of_variances_leaves_out_how_far_means_are_apart(
    means: tuple[float, float], more: tuple[float, ...], logged: str, status: str
) -> None:
    variances = (2.0, 2.5)

    def records(rank: int) -> Records:
        values = (means[rank], variances[rank], *(more[rank : rank + 1]))
        return [
            SpreadTaken(is_root=False, value=variances[rank], mean=means[rank]),
            Collective("all_reduce", group=(0, 1), shapes=((2,),), values=values, at=AT),
        ]

    found = replace(case({rank: records(rank) for rank in range(2)}), logs={0: [logged]})
    result = batchnorm_local.judge(found)

    assert result.status == status
    if status == WARNED:
        assert "that is 2.25, and the variance of all numbers is 3.25" in result.detail
        assert at(result) == AT


@pytest.mark.parametrize(
    ("held", "is_scaled", "status"),
    [((1, 2), (True, True), WARNED), ((1, 1), (True, True), NOT_APPLICABLE), ((1, 2), (True, False), NOT_APPLICABLE)],
    ids=["own parts", "equal data", "not scaled on each rank"],
)
def test_data_that_ranks_scale_by_their_own_parts_are_other_inputs(
    held: tuple[int, int], is_scaled: tuple[bool, bool], status: str
) -> None:
    owns = ((1.0, 2.0, 3.0, 4.0), (2.0, -1.0, 0.0, 1.0))
    shared = (1.5, 0.5, 1.5, 2.5)

    def trained(rank: int) -> Records:
        step = SketchedStep(0, 1, own=(owns[rank],), used=(shared,), before=(shared,), after=(shared,), at=AT)
        loaded = loader(scaled=held[rank] if is_scaled[rank] else None)
        return [SketchedTensors(0, (SketchedTensor(None, "weight", (2, 2)),)), step, loaded]

    assert batchnorm_local.judge(case({rank: trained(rank) for rank in range(2)})).status == status
