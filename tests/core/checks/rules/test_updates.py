"""What the first step makes of the weights is compared with one rank if gradients cannot be compared, and never without evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from compose_sim.core.checks import FAILED, PASSED, WARNED, Case
from compose_sim.core.checks.rules.replays import matches_single
from compose_sim.core.checks.rules.scaling import gradient_clipping
from compose_sim.core.checks.rules.updates import (
    are_comparable,
    judge_update,
    never_updated,
    other_attributes,
    other_constants,
    parted,
)
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.models import BY_HAND, PlainTensors
from compose_sim.node.records.precautions import Clip
from compose_sim.node.records.record import Record
from compose_sim.node.records.replays import HeldWeights, RecordedStep, ReplayedUpdate
from tests.core.checks.rules.cluster import at, observe
from tests.core.checks.rules.replays import AT, recorded
from tests.core.checks.rules.replicas import ddp

START, MOVED, ELSEWHERE = (1, 2), (3, 4), (5, 6)
STEPS = 4


def run(after: Mapping[int, list[tuple[int, ...]]], begins: Mapping[int, tuple[int, ...]] | None = None) -> Observed:
    """Return a run whose ranks hold these weights after each step."""
    ranks = {
        rank: observe(
            rank, [HeldWeights((begins or {}).get(rank, START), each, step) for step, each in enumerate(held, 1)]
        )
        for rank, held in after.items()
    }
    return Observed(ranks=ranks)


def alone(*, before: tuple[int, ...] = START, **update: Any) -> Observed:
    """Return the replay at world size 1."""
    facts = {"difference": 1e-7, "cosine": 1.0, "ratio": 1.0, "settings_are_equal": True, **update}
    return Observed(ranks={0: observe(0, [HeldWeights(before, (), 0), ReplayedUpdate("0.head.weight", **facts)])})


TOGETHER = run({rank: [MOVED] * STEPS for rank in range(4)})
IN_GROUPS = run({rank: [MOVED if rank < 2 else ELSEWHERE] * STEPS for rank in range(4)})
NOW_AND_THEN = run({rank: [MOVED if rank < 2 else ELSEWHERE, *[MOVED] * 3] for rank in range(4)})
EACH_ITS_OWN = run({rank: [(rank, rank)] * STEPS for rank in range(4)})
OTHER_STARTS = run({rank: [MOVED] * STEPS for rank in range(4)}, {3: ELSEWHERE})


@pytest.mark.parametrize(
    ("observed", "expected"),
    [(TOGETHER, True), (IN_GROUPS, True), (NOW_AND_THEN, False), (EACH_ITS_OWN, False), (OTHER_STARTS, False)],
)
def test_weights_are_compared_if_all_ranks_hold_the_same(observed: Observed, expected: bool) -> None:
    assert are_comparable(observed) is expected


@pytest.mark.parametrize(
    ("update", "status"),
    [
        ({}, PASSED),
        ({"difference": 0.05}, None),  # an adaptive step magnifies rounding
        ({"difference": 0.4, "cosine": 0.95, "ratio": 0.7}, WARNED),
        ({"difference": 0.75, "cosine": 1.0, "ratio": 4.0}, WARNED),
        (
            {"difference": 0.75, "cosine": 1.0, "ratio": 4.0, "settings_are_equal": False},
            None,
        ),  # the rate may be scaled
        ({"difference": 0.03, "left": (("0.head.bias", 1),)}, FAILED),
        ({"difference": 0.03, "left": (("0.head.weight", 4),)}, None),  # no rest of a division among four ranks
    ],
)
def test_an_update_is_that_of_one_rank_or_not(update: dict[str, Any], status: str | None) -> None:
    result = judge_update(Case(observed=TOGETHER, verdict="passed", weights=alone(**update)))

    assert (result.status if result else None) == status


def test_dropout_and_missing_evidence_leave_it_open() -> None:
    drawing = recorded(ranks=(), drew=("torch",))
    other = alone(difference=0.4, cosine=0.9)

    assert list(drawing.of(RecordedStep))
    assert judge_update(Case(observed=drawing, verdict="passed", weights=other)) is None
    assert judge_update(Case(observed=TOGETHER, verdict="passed")) is None


def test_the_finding_is_that_of_matches_single_at_the_line_of_the_step() -> None:
    observed = recorded(ranks=())
    result = matches_single.judge(
        Case(observed=observed, verdict="passed", weights=alone(difference=0.4, cosine=0.9, ratio=0.7))
    )

    assert result.status == WARNED
    assert at(result) == AT
    assert "head.weight" in result.detail


@pytest.mark.parametrize(
    ("observed", "weights", "found"),
    [
        (IN_GROUPS, alone(), True),
        (IN_GROUPS, alone(before=MOVED), False),  # they hold parts of one model, which one rank has whole
        (IN_GROUPS, None, False),
        (TOGETHER, alone(), False),
        (EACH_ITS_OWN, alone(), False),
    ],
)
def test_groups_that_part_are_named(observed: Observed, weights: Observed | None, found: bool) -> None:
    result = parted(Case(observed=observed, verdict="passed", weights=weights))

    assert (result is not None) is found
    assert result is None or ("ranks 0, 1" in result.detail and "ranks 2, 3" in result.detail)


def holding(buffers: Mapping[int, list[tuple[int, ...]]], in_forward: int = 0) -> Case:
    """Return a run whose ranks hold the same weights, and these buffers after each step."""
    step = SketchedStep(0, 1, (), (), (), (), in_forward=in_forward)
    ranks = {
        rank: observe(
            rank,
            [
                step,
                *(
                    HeldWeights(START, MOVED, number, each, ("Net.mask", "Net.mean"))
                    for number, each in enumerate(held, 1)
                ),
            ],
        )
        for rank, held in buffers.items()
    }
    return Case(observed=Observed(ranks=ranks), verdict="passed")


def test_a_constant_of_each_rank_is_named_and_running_statistics_are_not() -> None:
    apart = {rank: [(rank, 10 * rank + step) for step in range(STEPS)] for rank in range(2)}
    result = other_constants(holding(apart))

    assert result is not None
    assert "Net.mask" in result.detail
    assert "Net.mean" not in result.detail
    assert other_constants(holding(apart, in_forward=1)) is None  # ranks may hold parts of one computation
    assert other_constants(holding({rank: [(7, 8)] * STEPS for rank in range(2)})) is None


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ((("a", "a"), ("b", "b")), True),
        ((("a", "a"), ("a", "a")), False),
        ((("a", "b"), ("c", "d")), False),  # what the last pass has left
        ((("a",), ("b",)), False),  # seen once
    ],
)
def test_plain_tensors_that_never_change_and_differ_are_named(
    values: tuple[tuple[str, ...], ...], is_found: bool
) -> None:
    notes = {
        rank: [ddp(), *(PlainTensors(0, ("encode.mean (4)", "encode.B (2×3)"), ("same", value)) for value in mine)]
        for rank, mine in enumerate(values)
    }
    observed = Observed(ranks={rank: observe(rank, mine) for rank, mine in notes.items()})

    result = other_attributes(Case(observed=observed, verdict="passed"))

    assert (result is not None) == is_found
    assert result is None or ("encode.B (2×3)" in result.detail and "encode.mean" not in result.detail)


def test_ranks_that_hold_the_same_weights_clip_by_the_same_norm() -> None:
    def clipping(norms: Mapping[int, float], after: tuple[int, ...] = MOVED) -> str:
        held = {rank: after if rank else MOVED for rank in norms}
        records = {
            rank: [
                *(HeldWeights(START, held[rank], step) for step in range(1, 5)),
                *(Clip(1.0, norm, at=AT) for _ in range(4)),
            ]
            for rank, norm in norms.items()
        }
        observed = Observed(ranks={rank: observe(rank, each) for rank, each in records.items()})
        return gradient_clipping.judge(Case(observed=observed, verdict="passed")).status

    assert clipping({0: 3.0, 1: 2.0}) == WARNED
    assert clipping({0: 3.0, 1: 3.0}) == PASSED
    assert clipping({0: 0.9, 1: 0.5}) == PASSED  # nothing is clipped
    assert clipping({0: 3.0, 1: 2.0}, after=ELSEWHERE) == PASSED  # parts of one model


@pytest.mark.parametrize(
    ("kind", "gradient", "moved", "is_found"),
    [
        (BY_HAND, (1.0, 2.0), 0, True),
        (BY_HAND, (0.0, 0.0), 0, False),  # nothing to learn from
        (BY_HAND, (1.0, 2.0), 1, False),
        ("SGD", (1.0, 2.0), 0, False),  # its learning rate may be 0 on purpose
    ],
)
def test_a_parameter_that_an_update_by_hand_leaves_out_is_named(
    kind: str, gradient: tuple[float, float], moved: int, is_found: bool
) -> None:
    def records(rank: int) -> list[Record]:
        rows = (SketchedTensor(None, "body.weight", (2, 2)), SketchedTensor(None, "head.bias", (2,)))
        found: list[Record] = [SketchedTensors(0, rows)]
        for nth in range(1, 5):
            before = ((nth, 0.0), (5.0, 5.0 + moved * nth))
            after = ((nth + 1.0, 0.0), (5.0, 5.0 + moved * (nth + 1)))
            used = ((1.0, 1.0), gradient)
            found.append(SketchedStep(0, nth, used, used, before, after, type=kind, at=AT))
        return found

    result = never_updated(Observed(ranks={rank: observe(rank, records(rank)) for rank in range(2)}))

    assert (result is not None) == is_found
    if result is not None:
        assert result.status == FAILED
        assert "head.bias" in result.detail
        assert "body.weight" not in result.detail
