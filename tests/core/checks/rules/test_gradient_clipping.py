"""Whether gradients are clipped when they are whole and unscaled."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.rules.gradient_clipping import judge
from compose_sim.node.records.precautions import Clip, ShardScaling
from tests.core.checks.rules.cluster import case
from tests.core.checks.rules.replicas import AT


@pytest.mark.parametrize(("scale", "status"), [(1.0, "passed"), (1024.0, "failed")])
def test_gradients_must_be_unscaled_before_they_are_clipped(scale: float, status: str) -> None:
    result = judge(case({rank: [Clip(1.0, 700.0, scale, AT)] for rank in range(2)}))

    assert (result.status, result.at) == (status, AT if status == "failed" else None)


@pytest.mark.parametrize(
    ("factors", "ranks", "status"),
    [
        ((0.5, 0.5), (0, 1), "not-applicable"),  # by the same norm, whatever it is of
        ((0.5, 0.2), (0, 1), "failed"),
        ((0.5, 0.2), (), "failed"),  # flat parameters, which have no mesh
        ((0.5, 1.0), (0, 1), "failed"),  # the shards of one rank are within the limit
    ],
)
def test_ranks_that_shard_a_parameter_scale_it_by_the_same_factor(
    factors: tuple[float, ...], ranks: tuple[int, ...], status: str
) -> None:
    scalings = {
        rank: [ShardScaling(0, nth, factor, ranks, AT) for nth in range(1, 6)] for rank, factor in enumerate(factors)
    }

    assert judge(case(scalings)).status == status


def test_replicas_of_different_shards_may_scale_differently() -> None:
    groups = ((0, 1), (0, 1), (2, 3), (2, 3))
    scalings = {
        rank: [ShardScaling(0, nth, 0.5 - 0.1 * ranks[0], ranks) for nth in range(5)]
        for rank, ranks in enumerate(groups)
    }

    assert judge(case(scalings)).status == "not-applicable"
    with_clips = {rank: [*each, Clip(1.0, 2.0, 1.0, AT)] for rank, each in scalings.items()}
    assert judge(case(with_clips)).status == "passed"


def test_nothing_is_judged_if_nothing_was_clipped() -> None:
    assert judge(case({0: [], 1: []})).status == "not-applicable"
