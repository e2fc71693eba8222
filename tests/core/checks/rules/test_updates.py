"""What the first step makes of the weights is compared with one rank if gradients cannot be compared, and never without evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from compose_sim.core.checks import PASSED, WARNED, Case
from compose_sim.core.checks.rules.replays import matches_single
from compose_sim.core.checks.rules.updates import are_comparable, judge_update, parted
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.replays import HeldWeights, RecordedStep, ReplayedUpdate
from tests.core.checks.rules.cluster import at, observe
from tests.core.checks.rules.replays import AT, recorded

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
