"""Whether gradients are clipped when they are whole and unscaled."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.rules.scaling import gradient_clipping
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.precautions import Clip, ShardScaling
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.replicas import AT


@pytest.mark.parametrize(("scale", "status"), [(1.0, "passed"), (1024.0, "failed")])
def test_gradients_must_be_unscaled_before_they_are_clipped(scale: float, status: str) -> None:
    result = gradient_clipping.judge(case({rank: [Clip(1.0, 700.0, scale, AT)] for rank in range(2)}))

    assert (result.status, at(result)) == (status, AT if status == "failed" else None)


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

    assert gradient_clipping.judge(case(scalings)).status == status


def test_replicas_of_different_shards_may_scale_differently() -> None:
    groups = ((0, 1), (0, 1), (2, 3), (2, 3))
    scalings = {
        rank: [ShardScaling(0, nth, 0.5 - 0.1 * ranks[0], ranks) for nth in range(5)]
        for rank, ranks in enumerate(groups)
    }

    assert gradient_clipping.judge(case(scalings)).status == "not-applicable"
    with_clips = {rank: [*each, Clip(1.0, 2.0, 1.0, AT)] for rank, each in scalings.items()}
    assert gradient_clipping.judge(case(with_clips)).status == "passed"


def test_nothing_is_judged_if_nothing_was_clipped() -> None:
    assert gradient_clipping.judge(case({0: [], 1: []})).status == "not-applicable"


@pytest.mark.parametrize(
    ("factors", "apart", "status", "cause"),
    [
        ((0.5, 0.49), 5, "failed", "clips by a norm"),
        ((0.5, 0.25), 5, "failed", "divides by a loss scale of its own"),
        ((0.5, 0.5), 5, "not-applicable", ""),
        ((0.5, 0.49), 0, "failed", "clips by a norm"),  # copies beside parts, of which ranks compute equal gradients
    ],
)
def test_copies_are_clipped_by_the_same_norm(factors: tuple[float, float], apart: int, status: str, cause: str) -> None:
    tensors = SketchedTensors(0, tuple(SketchedTensor(None, f"{row} of group 0", (4, 2)) for row in range(2)))
    before = ((0.5, 0.1, -0.3, 0.9),) * 2

    def own(rank: int, nth: int, row: int) -> tuple[float, ...]:
        return tuple(float((apart * rank + 3 * nth + 7 * row + place * place) % 11 - 4) for place in range(4))

    def used(rank: int, nth: int, row: int) -> tuple[float, ...]:
        return tuple(factors[rank] * sum(each) / 2 for each in zip(own(0, nth, row), own(1, nth, row), strict=True))

    notes = {
        rank: [
            tensors,
            *(
                SketchedStep(
                    0,
                    nth,
                    own=tuple(own(rank, nth, row) for row in range(2)),
                    used=tuple(used(rank, nth, row) for row in range(2)),
                    before=before,
                    after=before,
                    backwards=1,
                    at=AT,
                )
                for nth in range(1, 6)
            ),
        ]
        for rank in range(2)
    }

    result = gradient_clipping.judge(case(notes))
    assert result.status == status
    assert cause in result.detail
