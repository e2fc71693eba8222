"""Equal generator states before draws for samples are warned of; few numbers, which may decide for all ranks, are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.checks import NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.loaders import same_randomness
from compose_sim.node.records.data import GeneratorDraw, RandomDraws, TrainingForward
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import Records, at, case
from tests.core.checks.rules.loading import LINE, epoch, loader
from tests.core.checks.rules.replicas import AT, ddp


def fed(state: int, number: int, drew: int = 64) -> TrainingForward:
    return TrainingForward(0, (0, 1), number, (1, 2), state, drew)


def drawn(state: int, fetch: int, count: int = 8) -> RandomDraws:
    return RandomDraws(0, 0, fetch, 2, worker=0, states={"torch": (state, count)} if count else {})


def loaded(*records: Record) -> Records:
    return [ddp(), loader(), *records, *epoch(range(8))]


def test_dropout_with_equal_states_is_warned_of() -> None:
    result = same_randomness.judge(case({rank: [ddp(), fed(5, 0), fed(6, 1)] for rank in range(2)}))
    assert result.status == WARNED
    assert "ranks 0 and 1 drew the same random numbers in the model's forward (dropout)" in result.detail


def test_augmentation_with_equal_states_is_warned_of() -> None:
    result = same_randomness.judge(case({rank: loaded(drawn(5, 0), drawn(6, 1)) for rank in range(2)}))
    assert result.status == WARNED
    assert "(augmentation)" in result.detail
    assert at(result) == LINE


def test_states_of_their_own_pass() -> None:
    assert (
        same_randomness.judge(case({rank: loaded(drawn(5 + rank, 0), drawn(7 + rank, 1)) for rank in range(2)})).status
        == PASSED
    )


def test_a_number_for_the_whole_batch_is_not_judged() -> None:
    assert (
        same_randomness.judge(case({rank: [ddp(), fed(5, 0, drew=1), fed(6, 1, drew=1)] for rank in range(2)})).status
        == NOT_APPLICABLE
    )
    assert (
        same_randomness.judge(case({rank: loaded(drawn(5, 0, count=0)) for rank in range(2)})).status == NOT_APPLICABLE
    )


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ((1, 2), (5, 5), WARNED),
        ((1, 2), (5, 6), PASSED),
        ((1, 1), (5, 5), WARNED),  # from the start
        ((1, 2), (5,), PASSED),
    ],
)
def test_ranks_that_draw_alike_after_a_load_are_warned_of(
    before: tuple[int, int], after: tuple[int, ...], status: str
) -> None:
    ranks: dict[int, Records] = {
        rank: [
            ddp(),
            *(fed(10 * nth + before[rank], nth) for nth in range(3)),
            *(replace(fed(100 * nth + state, nth), loads=1) for nth in (3, 4) for state in after[rank : rank + 1]),
        ]
        for rank in range(2)
    }

    assert same_randomness.judge(case(ranks)).status == status


@pytest.mark.parametrize(
    ("before", "after", "loads", "status"),
    [
        ((1, 2), (5, 5), (True, True), WARNED),
        ((1, 2), (5, 6), (True, True), NOT_APPLICABLE),  # each its own
        ((1, 1), (5, 5), (True, True), NOT_APPLICABLE),  # a generator that ranks share
        ((1, 2), (5, 5), (False, False), NOT_APPLICABLE),  # seeded
        ((1, 2), (5, 5), (True, False), NOT_APPLICABLE),
        ((), (5, 5), (True, True), NOT_APPLICABLE),  # nothing was drawn there before
    ],
)
def test_a_generator_of_the_script_that_goes_on_from_the_state_of_one_rank(
    before: tuple[int, ...], after: tuple[int, int], loads: tuple[bool, bool], status: str
) -> None:
    ranks: dict[int, Records] = {
        rank: [
            ddp(),
            *(GeneratorDraw(nth, f"{nth} {seed}", None, LINE) for nth in (1, 2) for seed in before[rank : rank + 1]),
            *(GeneratorDraw(nth, f"{nth} {after[rank]}", AT if loads[rank] else None, LINE) for nth in (3, 4)),
        ]
        for rank in range(2)
    }

    result = same_randomness.judge(case(ranks))

    assert (result.status, at(result)) == (status, AT if status == WARNED else None)


def test_one_draw_after_a_load_may_be_alike_by_intention() -> None:
    ranks: dict[int, Records] = {
        rank: [ddp(), *(GeneratorDraw(nth, f"{rank}", None, LINE) for nth in (1, 2)), GeneratorDraw(3, "5", AT, LINE)]
        for rank in range(2)
    }

    assert same_randomness.judge(case(ranks)).status == NOT_APPLICABLE
