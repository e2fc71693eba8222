"""A constant factor between world sizes is a wrong scale, and a learning rate may grow by the world size at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.scaling import loss_scale
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.data import LoaderInfo
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.models import ScheduleMade
from compose_sim.node.records.record import Record
from compose_sim.node.records.replays import RecordedModels, RecordedStep
from tests.core.checks.rules.cluster import WORLD, at, collective, two_nodes
from tests.core.checks.rules.replays import AT, case, recorded, step


def rates(one: dict[str, float], many: dict[str, float]) -> dict[str, object]:
    return {"settings": (one,), "recorded_settings": (many,)}


def test_the_right_scale_passes() -> None:
    assert loss_scale.judge(case(step(0), step(1))).status == PASSED


@pytest.mark.parametrize(("ratio", "words"), [(4.0, "are 1/4.00 of"), (0.25, "are 4.00 times")])
def test_a_constant_factor_fails(ratio: float, words: str) -> None:
    result = loss_scale.judge(case(*(step(number, ratio=ratio, difference=0.75) for number in range(4))))
    assert result.status == FAILED
    assert words in result.detail


@pytest.mark.parametrize(
    ("ratio", "given", "counts_copies"),
    [
        (2.0, lambda rank, nth: 0.5 + nth, True),
        (2.0, lambda rank, nth: 0.5 + nth + rank, False),  # the squares of shards
        (2.0, lambda rank, nth: 1.0, False),  # a count
        (4.0, lambda rank, nth: 0.5 + nth, False),
    ],
)
def test_a_factor_of_the_root_is_a_norm_of_copies(
    ratio: float, given: Callable[[int, int], float], counts_copies: bool
) -> None:
    seen = {
        rank: replace(
            each,
            records=(
                *each.records,
                *(collective("all_reduce", group=WORLD, values=(given(rank, nth),)) for nth in range(5)),
            ),
        )
        for rank, each in recorded().ranks.items()
    }
    steps = [step(number, ratio=ratio, difference=0.75) for number in range(4)]
    result = loss_scale.judge(case(*steps, observed=Observed(ranks=seen)))
    assert result.status == FAILED
    assert ("the square root of 4" in result.detail) == counts_copies


@pytest.mark.parametrize("through", [True, False])
def test_a_factor_of_the_world_size_may_come_from_a_reduction_in_the_loss(through: bool) -> None:
    reduced = [collective("all_reduce", group=WORLD, through=through, at=AT) for _ in range(5)]
    seen = {rank: replace(each, records=(*each.records, *reduced)) for rank, each in recorded().ranks.items()}
    steps = [step(number, ratio=4.0, difference=0.75) for number in range(4)]

    result = loss_scale.judge(case(*steps, observed=Observed(ranks=seen)))

    assert result.status == FAILED
    assert ("torch.distributed.nn.functional.all_reduce" in result.fix) == through


def test_a_factor_that_changes_is_none() -> None:
    steps = [step(number, ratio=ratio, difference=0.5) for number, ratio in enumerate((1.1, 0.8, 1.3))]
    assert loss_scale.judge(case(*steps)).status == NOT_APPLICABLE


def test_a_sum_divided_by_the_batch_size_of_a_rank_is_a_mean() -> None:
    steps = [step(number, ratio=4.0, difference=3.0, divisors=(8.0,)) for number in range(3)]
    assert loss_scale.judge(case(*steps)).status == NOT_APPLICABLE


def test_a_sum_over_one_sample_is_a_mean() -> None:
    steps = [step(number, ratio=4.0, difference=3.0, batch_size=1) for number in range(3)]
    assert loss_scale.judge(case(*steps)).status == NOT_APPLICABLE


def test_a_factor_of_the_world_size_shows_through_dropout() -> None:
    noisy = recorded(drew=("torch",))
    summed = [step(number, ratio=3.9 + number / 10, cosine=0.95, difference=3.0) for number in range(4)]
    right = [step(number, ratio=1.1, cosine=0.95, difference=0.3) for number in range(4)]
    assert loss_scale.judge(case(*summed, observed=noisy)).status == FAILED
    assert loss_scale.judge(case(*right, observed=noisy)).status == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("one", "many", "status"),
    [
        ({"lr": 0.1}, {"lr": 0.4}, PASSED),
        ({"lr": 0.1}, {"lr": 0.2}, PASSED),
        ({"lr": 0.1}, {"lr": 1.6}, FAILED),
        ({"lr": 0.1, "initial_lr": 0.1}, {"lr": 1.6, "initial_lr": 1.6}, FAILED),
    ],
)
def test_a_learning_rate_is_scaled_once(one: dict[str, float], many: dict[str, float], status: str) -> None:
    assert loss_scale.judge(case(step(0, **rates(one, many)), step(1, **rates(one, many)))).status == status


def test_a_warm_up_is_no_scale() -> None:
    first = rates({"lr": 0.001, "initial_lr": 0.1}, {"lr": 0.016, "initial_lr": 0.4})
    second = rates({"lr": 0.002, "initial_lr": 0.1}, {"lr": 0.032, "initial_lr": 0.4})
    assert loss_scale.judge(case(step(0, **first), step(1, **second))).status == PASSED


@pytest.mark.parametrize(("settled", "status"), [(0.4, PASSED), (1.6, FAILED)])
def test_a_rate_that_a_warm_up_scales_again_fails_once_it_has_settled(settled: float, status: str) -> None:
    pairs = [(0.05, settled / 2), *[(0.1, settled)] * 3]
    steps = [step(number, **rates({"lr": one}, {"lr": many})) for number, (one, many) in enumerate(pairs)]

    assert loss_scale.judge(case(*steps)).status == status


@pytest.mark.parametrize(
    ("pairs", "status"),
    [
        ([(0.1, 0.4), (0.1, 1.0), (0.1, 1.6), (0.01, 0.16), (0.005, 0.08)], FAILED),  # scaled again, then a decay
        ([(0.1, 0.4), (0.1, 0.4), (0.01, 0.4), (0.01, 0.4), (0.01, 0.4)], PASSED),  # a plateau that one rank met first
        ([(0.0, 0.0), (0.01, 0.16), (0.02, 0.32), (0.03, 0.48), (0.04, 0.64)], PASSED),  # a warm-up over samples
    ],
)
def test_rates_that_change_are_compared_by_their_ratio(pairs: list[tuple[float, float]], status: str) -> None:
    steps = [step(number, **rates({"lr": one}, {"lr": many})) for number, (one, many) in enumerate(pairs)]

    assert loss_scale.judge(case(*steps)).status == status


@pytest.mark.parametrize(
    ("times", "averaged", "status"),
    [(1.0, True, FAILED), (4.0, True, PASSED), (1.0, False, NOT_APPLICABLE), (0.3, True, NOT_APPLICABLE)],
)
def test_a_sum_divided_by_the_count_of_all_ranks_makes_up_for_the_mean(
    times: float, averaged: bool, status: str
) -> None:
    def records(rank: int) -> list[Record]:
        found: list[Record] = [RecordedModels(0, sharded=True, averaged=averaged)]
        for nth in range(1, 5):
            counts = [10.0 + nth * each for each in WORLD]
            found.append(collective("all_reduce", 2, values=(0.5 * rank, counts[rank])))
            found.append(SketchedStep(0, nth, (), (), (), (), 1, sum_times=times / sum(counts), at=AT))
        return found

    result = loss_scale.judge(two_nodes(records))

    assert result.status == status
    assert (at(result) == AT) == (status == FAILED)

    if status == FAILED:  # the replay shows the factor, and not what explains it
        steps = [step(number, ratio=4.0, difference=0.75) for number in range(4)]
        replayed = loss_scale.judge(case(*steps, observed=two_nodes(records).observed))
        assert (replayed.status, replayed.fix) == (status, result.fix)


@pytest.mark.parametrize(
    ("times", "used", "batches", "others", "status"),
    [
        (1.0, 1.0, 2, [], WARNED),
        (0.5, 1.0, 2, [], PASSED),
        (1.0, 0.5, 2, [], PASSED),  # gradients are divided after the last pass
        (1.0, 1.0, 1, [], PASSED),  # two losses of one batch
        (1.0, 1.0, 2, [LoaderInfo(1, "Target")], PASSED),  # one loss for each of two loaders
    ],
)
def test_accumulated_batches_are_divided_by_their_number(
    times: float, used: float, batches: int, others: list[Record], status: str
) -> None:
    def records(rank: int) -> list[Record]:
        rows = (SketchedTensor(0, "weight", (4, 2)),)
        found: list[Record] = [LoaderInfo(0, "Source"), *others, SketchedTensors(0, rows)]
        for nth in range(1, 5):
            own, mean = ((scale * 1.0, 2.0, nth, 1.0) for scale in (rank, 1.5))
            found += [
                RecordedStep(nth - 1, 0, fetched=nth * batches),
                SketchedStep(
                    0, nth, (own,), (tuple(used * each for each in mean),), ((),), ((),), 2, times, type="SGD", at=AT
                ),
            ]
        return found

    result = loss_scale.judge(case(step(0), step(1), observed=two_nodes(records).observed))

    assert result.status == status
    assert (at(result) == AT) == (status == WARNED)


@pytest.mark.parametrize(
    ("counts", "is_sum", "averaged", "status"),
    [
        ((30, 60, 40, 50), True, True, WARNED),
        ((30, 60, 40, 50), False, True, WARNED),
        ((30, 60, 40, 50), True, False, NOT_APPLICABLE),  # nothing averages: ranks may weigh by their counts
        ((50, 60, 55, 52), True, True, NOT_APPLICABLE),
        ((50, 70, 55, 52), False, True, NOT_APPLICABLE),  # as many as a mask that is drawn at random leaves
        ((45, 45, 45, 45), True, True, NOT_APPLICABLE),  # the mean of all
    ],
)
def test_targets_that_each_rank_counts_by_itself_weigh_differently(
    counts: tuple[int, ...], is_sum: bool, averaged: bool, status: str
) -> None:
    def records(rank: int) -> list[Record]:
        times = 1 / counts[rank]
        found: list[Record] = [RecordedModels(0, averaged=averaged), SketchedTensors(0, ())]
        for nth in range(1, 5):
            mean, total = (None, times) if is_sum else (1.0, None)
            step = SketchedStep(0, nth, (), (), (), (), 1, mean_times=mean, sum_times=total, each_times=times, at=AT)
            found.append(step)
        return found

    result = loss_scale.judge(two_nodes(records))

    assert result.status == status
    assert (at(result) == AT) == (status == WARNED)
    assert ("2.00 times" in result.detail) == (status == WARNED)


@pytest.mark.parametrize(
    ("ends", "steps", "status"),
    [
        (160, 40, WARNED),
        (161, 40, WARNED),
        (40, 40, PASSED),
        (10, 40, PASSED),  # a warm-up
        (100, 40, PASSED),
        (8, 2, PASSED),  # epochs
    ],
)
def test_a_schedule_of_the_steps_of_all_ranks_ends_too_late(ends: int, steps: int, status: str) -> None:
    observed = two_nodes(lambda _: [ScheduleMade("OneCycleLR", ends, steps, AT)]).observed

    result = loss_scale.judge(case(step(0), step(1), observed=observed))

    assert result.status == status
    assert (at(result) == AT) == (status == WARNED)
