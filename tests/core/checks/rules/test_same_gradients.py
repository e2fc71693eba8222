"""Whether ranks are told that they compute the same gradients, although no loader shows their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from compose_sim.core.checks import Result
from compose_sim.core.checks.rules.samples import sampler_overlap
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.process_groups import Collective, UntrackedWait
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.replicas import AT, all_reduce, ddp

SHAPE = (10, 10)


def step(nth: int, own: float, *, weight: float = 0.5, times: float = 1.0) -> SketchedStep:
    gradient = (own, own * nth, -0.3, 0.7)
    weights = (weight, 0.1, 0.2, 0.3)
    used = tuple(times * each for each in gradient)
    return SketchedStep(0, nth, own=(gradient,), used=(used,), before=(weights,), after=(weights,), at=AT)


def judged(
    steps: Sequence[Sequence[SketchedStep]],
    *more: Record,
    model: int | None = 0,
    reduces: bool = False,
    late: Sequence[Record] = (),
) -> Result:
    table = SketchedTensors(0, (SketchedTensor(model, "weight", SHAPE),))
    reduced: list[Record] = [all_reduce(*SHAPE) for _ in steps[0]] if reduces else []
    models = [ddp()] if model is not None else []
    return sampler_overlap.judge(
        case({rank: [*models, table, *more, *mine, *reduced, *late] for rank, mine in enumerate(steps)})
    )


def same(count: int = 4, **more: Any) -> list[list[SketchedStep]]:
    return [[step(nth, nth + 1.5, **more) for nth in range(1, count + 1)] for _ in range(2)]


@pytest.mark.parametrize("options", [{}, {"model": None, "reduces": True}], ids=["DDP", "by hand"])
def test_equal_gradients_at_every_step_are_a_warning(options: dict[str, Any]) -> None:
    result = judged(same(), **options)

    assert (result.status, at(result)) == ("warned", AT)
    assert result.detail.startswith("all 2 ranks computed the same gradients from equal weights at each of 4 steps")
    assert "seed + dist.get_rank()" in (result.fix or "")


def test_clipped_and_summed_gradients_are_still_the_same() -> None:
    assert judged(same(times=2.0)).status == "warned"
    assert judged(same(times=0.1)).status == "warned"


@pytest.mark.parametrize(
    "steps",
    [
        same(2),  # too few
        [[step(nth, 1.0 + (rank if nth > 2 else 0)) for nth in range(1, 6)] for rank in range(2)],  # a warm-up
        [[step(nth, nth + 1.0, weight=0.5 + rank) for nth in range(1, 5)] for rank in range(2)],  # parts of a model
        [[step(nth, 0.0) for nth in (1, 1, 1)] for _ in range(2)],
        [same()[0], same(3)[0]],
    ],
    ids=["few steps", "warm-up", "parts of a model", "one gradient", "fewer steps on a rank"],
)
def test_anything_else_is_not(steps: list[list[SketchedStep]]) -> None:
    assert judged(steps).status == "not-applicable"


@pytest.mark.parametrize(
    "record",
    [
        Collective("broadcast", (0, 1), shapes=((16, 4),), dtype="float32"),
        Collective("all_gather", (0, 1), shapes=((16, 4),), dtype="float32"),
        Collective("broadcast_object_list", (0, 1)),
        UntrackedWait("recv"),
    ],
    ids=lambda record: getattr(record, "op", "recv"),
)
def test_ranks_that_share_samples_mean_to(record: Record) -> None:
    assert judged(same(), record).status == "not-applicable"


def test_weights_and_single_numbers_are_no_samples() -> None:
    weights = Collective("broadcast", (0, 1), shapes=(SHAPE,), dtype="float32")
    assert judged(same(), weights, Collective("all_gather", (0, 1), shapes=((1,),), dtype="float32")).status == "warned"
    # Samples that happen to have the shape of a weight.
    assert judged(same(), late=[weights]).status == "not-applicable"


def test_gradients_that_nothing_reduces_are_not_judged() -> None:
    assert judged(same(), model=None).status == "not-applicable"
