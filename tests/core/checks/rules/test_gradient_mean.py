"""Whether each step used the mean of the gradients that the ranks computed, judged from sketches made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from compose_sim.core.checks import Result
from compose_sim.core.checks.rules.gradients import gradient_mean
from compose_sim.node.records.data import Join
from compose_sim.node.records.gradients import DetachedInLoss, SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.models import LossValue, OptimizerStep
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.replicas import AT, all_reduce, step

Vector = tuple[float, ...]
Used = Callable[[int, Sequence[Vector]], Vector]  # from the rank, and from what all ranks computed

ROWS = (SketchedTensor(None, "0 of group 0", (2, 2)), SketchedTensor(None, "1 of group 0", (2, 2)))
WEIGHTS = ((0.5, 0.1, -0.3, 0.9), (0.2, -0.4, 0.7, 0.1))


def own(rank: int, nth: int, row: int = 0) -> Vector:
    """Return a gradient that no other rank, step or parameter has."""
    return tuple(((7 * rank + 3 * nth + 5 * row + place * place * (rank + 2)) % 11) - 4.5 for place in range(4))


def mean(owns: Sequence[Vector], times: float = 1.0) -> Vector:
    return tuple(times * sum(values) / len(owns) for values in zip(*owns, strict=True))


def weighted(owns: Sequence[Vector], *weights: float) -> Vector:
    return mean([tuple(weight * each for each in values) for weight, values in zip(weights, owns, strict=True)])


def steps(rank: int, used: Used, *, ranks: int = 2, count: int = 5, **more: Any) -> list[Record]:
    """Return the steps of a rank whose used gradients follow from those of all ranks."""
    found: list[Record] = [SketchedTensors(0, ROWS)]
    for nth in range(1, count + 1):
        owns = [[own(each, nth, row) for each in range(ranks)] for row in range(2)]
        values: dict[str, Any] = {
            "own": tuple(each[rank] for each in owns),
            "used": tuple(used(rank, each) for each in owns),
            "before": WEIGHTS,
            "after": WEIGHTS,
            "backwards": 1,
            "mean_times": 1.0,
            "type": "SGD",
            "at": AT,
        }
        found.append(SketchedStep(0, nth, **{**values, **more}))
    return found


def judged(used: Used, *, ranks: int = 2, **more: Any) -> Result:
    return gradient_mean.judge(case({rank: steps(rank, used, ranks=ranks, **more) for rank in range(ranks)}))


@pytest.mark.parametrize(("losses", "is_warned"), [((0.7, 0.7), False), ((0.7, 0.8), True)])
def test_ranks_that_compute_one_loss_together_may_add_its_gradients(losses: Vector, is_warned: bool) -> None:
    def of(rank: int) -> list[Record]:
        found = steps(rank, lambda _, owns: mean(owns, len(owns)), in_forward=1, type="Adam")
        return [*found, *(LossValue(losses[rank]) for _ in range(5))]

    result = gradient_mean.judge(case({rank: of(rank) for rank in range(2)}))

    assert (result.status == "warned") is is_warned


def test_the_mean_passes_on_any_number_of_ranks() -> None:
    assert judged(lambda _, owns: mean(owns)).status == "passed"
    assert judged(lambda _, owns: mean(owns), ranks=4).detail == (
        "5 of 5 steps used the mean of the gradients that the ranks computed (ranks 0, 1, 2, 3)"
    )


def test_steps_that_could_not_be_judged_are_named() -> None:
    calls = iter(range(20))

    result = judged(lambda _, owns: (9.0, -7.0, 5.0, 3.0) if next(calls) % 10 > 7 else mean(owns))

    assert (result.status, result.detail.partition("; ")[2]) == ("passed", "not judged: step 5")


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, "failed"),
        ({"type": "AdamW"}, "warned"),  # its steps do not depend on the factor
        ({"in_forward": 1}, "warned"),
        ({"in_backward": 2}, "passed"),  # as in sequence parallelism, where each rank has a part of the gradient
        ({"mean_times": 0.5}, "passed"),  # the loss is divided by the number of ranks
        ({"mean_times": None}, "passed"),  # a sum over samples, or several terms
        ({"mean_times": 0.25, "backwards": 4}, "failed"),
    ],
)
def test_a_sum_fails_unless_the_loss_may_explain_it(more: dict[str, Any], status: str) -> None:
    result = judged(lambda _, owns: mean(owns, 2.0), **more)

    assert result.status == status
    assert (at(result) == AT) == (status != "passed")


def test_a_mean_that_is_divided_again_fails_and_one_that_is_clipped_does_not() -> None:
    calls = iter(range(1000))

    assert judged(lambda _, owns: mean(owns, 0.5)).status == "failed"
    assert judged(lambda _, owns: mean(owns, 1.0 / (2 + next(calls) // 2 % 5))).status == "passed"


@pytest.mark.parametrize(("joins", "status"), [(True, "passed"), (False, "failed")])
def test_ranks_that_have_no_batches_left_still_count_in_a_join(joins: bool, status: str) -> None:
    ranks: dict[int, list[Record]] = {}
    for rank in range(4):
        all_train = steps(rank, lambda _, owns: mean(owns), ranks=4, count=2)
        two_are_left = steps(rank, lambda _, owns: mean(owns[:2], 0.5), ranks=4)[3:] if rank < 2 else []
        ranks[rank] = [*([Join(True)] if joins else []), *all_train, *two_are_left]

    assert gradient_mean.judge(case(ranks)).status == status


def test_a_rank_whose_gradient_nobody_uses_is_named() -> None:
    result = judged(lambda _, owns: weighted(owns, 2.0, 0.0))

    assert (result.status, result.ranks) == ("failed", (1,))


def test_a_mean_weighted_by_counts_passes_and_clipping_before_the_mean_warns() -> None:
    assert judged(lambda _, owns: weighted(owns, 1.5, 0.5)).status == "passed"
    assert judged(lambda _, owns: weighted(owns, 1.0, 0.3)).status == "warned"


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        (lambda rank, owns: owns[rank], "each rank steps with its own gradient, or all computed the same"),
        (lambda _, owns: (9.0, 1.0, -7.0, 3.0), "something else is part of them"),
    ],
)
def test_what_is_no_reduction_is_not_judged(used: Used, reason: str) -> None:
    result = judged(used)

    assert result.status == "not-applicable"
    assert result.detail.endswith(reason)


@pytest.mark.parametrize(
    ("clipped", "whole", "model", "status"),
    [
        (1.0, 2.0, None, "failed"),
        (0.2, 2.0, None, "failed"),  # clipping divides all alike
        (0.495, 2.0, None, "failed"),  # nearly to the half, by chance
        (0.5, 2.0, None, "not-applicable"),  # the mean itself beside its half: divided on purpose
        (1.0, 2.0, 0, "not-applicable"),  # DDP reduces all alike
        (1.0, 1.7, None, "not-applicable"),
    ],
)
def test_a_sum_beside_a_mean_fails_unless_it_may_be_meant(
    clipped: float, whole: float, model: int | None, status: str
) -> None:
    rows = tuple(row._replace(model=model) for row in ROWS)
    records = {}
    for rank in range(2):
        calls = iter(range(1000))  # the first parameter of each step gets the sum
        made = steps(rank, lambda _, owns, calls=calls: mean(owns, clipped * (1.0 if next(calls) % 2 else whole)))
        records[rank] = [SketchedTensors(0, rows), *made[1:]]
    result = gradient_mean.judge(case(records))

    assert result.status == status
    assert ("gradients of 0 of group 0, measured by" in result.detail) == (status == "failed")


def test_two_groups_that_each_take_their_mean_pass() -> None:
    def used(rank: int, owns: Sequence[Vector]) -> Vector:
        return mean(owns[0:2] if rank < 2 else owns[2:4])

    assert judged(used, ranks=4).status == "passed"


def test_gradients_that_were_reduced_with_those_of_another_parameter_fail() -> None:
    def crossed(rank: int) -> list[Record]:
        mixed = tuple(
            mean([own(0, 1, row if rank == 0 else 1 - row), own(1, 1, 1 - row if rank == 0 else row)])
            for row in range(2)
        )
        values: dict[str, Any] = {"own": (own(rank, 1, 0), own(rank, 1, 1)), "before": WEIGHTS, "after": WEIGHTS}
        return [SketchedTensors(0, ROWS), SketchedStep(0, 1, used=mixed, at=AT, **values)]

    result = gradient_mean.judge(case({0: crossed(0), 1: crossed(1)}))

    assert (result.status, result.ranks) == ("failed", (0, 1))
    assert result.fix == (
        "Reduce in the same order on every rank, such as that of `model.parameters()`; never in that of a set or of files."
    )


@pytest.mark.parametrize(("times", "status"), [(1.0, "not-applicable"), (2.0, "failed")])
def test_weights_that_are_added_between_steps_fail_and_averaged_ones_do_not(times: float, status: str) -> None:
    def local(rank: int) -> list[Record]:
        after = [tuple(own(each, 9, row) for row in range(2)) for each in range(2)]
        then = tuple(mean([after[0][row], after[1][row]], times) for row in range(2))
        gradient = (own(rank, 1, 0), own(rank, 1, 1))
        first = SketchedStep(0, 1, own=gradient, used=gradient, before=WEIGHTS, after=after[rank], at=AT)
        return [
            SketchedTensors(0, ROWS),
            first,
            SketchedStep(0, 2, own=gradient, used=gradient, before=then, after=then, at=AT),
        ]

    assert gradient_mean.judge(case({0: local(0), 1: local(1)})).status == status


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize(("times", "status"), [(0.7, "not-applicable"), (1.3, "not-applicable"), (3.6, "warned")])
def test_changes_that_are_added_to_the_common_weights_warn(times: float, status: str, local_steps: int) -> None:
    def local(rank: int) -> list[Record]:
        found: list[Record] = [SketchedTensors(0, ROWS)]
        common = tuple(own(9, 9, row) for row in range(2))
        for nth in range(1, 5):
            ends = [
                tuple(weighted([common[row], own(each, nth, row)], 2.0, 0.2) for row in range(2)) for each in range(4)
            ]
            gradient = (own(rank, nth, 0), own(rank, nth, 1))
            held = [common, *[ends[rank]] * local_steps]
            for before, after in pairwise(held):
                made = len(found)
                found.append(SketchedStep(0, made, own=gradient, used=gradient, before=before, after=after, at=AT))
            averages = [mean([end[row] for end in ends]) for row in range(2)]
            # Common + times * (average - common).
            common = tuple(weighted([common[row], averages[row]], 2 - 2 * times, 2 * times) for row in range(2))
        return found

    assert gradient_mean.judge(case({rank: local(rank) for rank in range(4)})).status == status


def test_parameters_that_an_optimizer_gets_later_are_judged_from_then_on() -> None:
    def growing(rank: int) -> list[Record]:
        owns = [own(each, 1) for each in range(2)]
        first = SketchedStep(0, 1, own=(owns[rank],), used=(mean(owns),), before=WEIGHTS[:1], after=WEIGHTS[:1], at=AT)
        table, _, *later = steps(rank, lambda _, found: mean(found))
        return [SketchedTensors(0, ROWS[:1]), first, table, *later]

    assert gradient_mean.judge(case({rank: growing(rank) for rank in range(2)})).status == "passed"


def test_an_optimizer_of_another_copy_fails() -> None:
    def without_gradients(copy_of: int | None) -> list[Record]:
        values: dict[str, Any] = {"own": (None, None), "used": (None, None), "before": WEIGHTS, "after": WEIGHTS}
        return [SketchedTensors(0, ROWS), *(SketchedStep(0, nth, copy_of=copy_of, at=AT, **values) for nth in (1, 2))]

    assert gradient_mean.judge(case({rank: without_gradients(0) for rank in range(2)})).status == "failed"
    assert gradient_mean.judge(case({rank: without_gradients(None) for rank in range(2)})).status == "not-applicable"


@pytest.mark.parametrize(("again", "status"), [(True, "failed"), (False, "passed")])
def test_a_sum_that_is_summed_again_by_each_backward_pass_fails(again: bool, status: str) -> None:
    def recorded(rank: int) -> list[Record]:
        found: list[Record] = [SketchedTensors(0, ROWS)]
        for nth in range(1, 5):
            first, last = (
                [tuple(own(each, nth + turn, row) for row in range(2)) for each in range(2)] for turn in (0, 50)
            )
            times = 2 if again else 1
            used = [
                tuple(times * one + two for one, two in zip(mean(a), mean(b), strict=True))
                for a, b in zip(zip(*first, strict=True), zip(*last, strict=True), strict=True)
            ]
            both = [tuple(map(sum, zip(a, b, strict=True))) for a, b in zip(first[rank], last[rank], strict=True)]
            values = {"own": tuple(both), "used": tuple(used), "before": WEIGHTS, "after": WEIGHTS, "backwards": 2}
            found.append(SketchedStep(0, nth, passes=(first[rank], last[rank]), at=AT, **values))
        return found

    result = gradient_mean.judge(case({rank: recorded(rank) for rank in range(2)}))
    assert result.status == status
    assert ("counts 2 times" in result.detail) == again


@pytest.mark.parametrize(("times", "status"), [(5, "warned"), (2, "passed")])
def test_a_loss_over_detached_copies_warns_if_most_steps_have_one(times: int, status: str) -> None:
    lost: list[Record] = [DetachedInLoss("all_gather", (8, 4), AT)] * times
    right = {rank: steps(rank, lambda _, owns: mean(owns)) for rank in range(2)}

    assert gradient_mean.judge(case({rank: [*mine, *lost] for rank, mine in right.items()})).status == status


def in_branches(reduced: Callable[[Sequence[Vector]], Vector]) -> Result:
    """Judge four ranks of which only the even ones reach the second parameter; `reduced` takes what they computed of it."""
    found: dict[int, list[Record]] = {}
    for rank in range(4):
        mine: list[Record] = [SketchedTensors(0, ROWS)]
        for nth in range(1, 6):
            everywhere, even = [own(each, nth) for each in range(4)], [own(each, nth, 1) for each in (0, 2)]
            values: dict[str, Any] = {
                "before": WEIGHTS,
                "after": WEIGHTS,
                "backwards": 1,
                "mean_times": 1.0,
                "type": "SGD",
            }
            reached = own(rank, nth, 1) if rank % 2 == 0 else None
            used = (mean(everywhere), reduced(even))
            mine.append(SketchedStep(0, nth, own=(own(rank, nth), reached), used=used, at=AT, **values))
        found[rank] = mine
    return gradient_mean.judge(case(found))


def test_a_rank_that_did_not_reach_a_parameter_contributes_zero_to_the_mean() -> None:
    result = in_branches(lambda even: mean(even, 0.5))

    assert result.status == "passed"
    assert "the mean" in result.detail


def test_a_gradient_that_other_ranks_only_received_is_the_mean_of_those_who_computed_it() -> None:
    assert in_branches(mean).status == "passed"


def test_a_sum_over_the_ranks_that_reached_a_parameter_fails() -> None:
    assert in_branches(lambda even: mean(even, 2)).status == "failed"


@pytest.mark.parametrize(
    ("begun", "exchange", "status"),
    [
        ((0.0, 0.0), [], "failed"),
        ((0.0, 0.3), [], "passed"),  # each rank keeps its own part
        ((0.0, 0.0), [all_reduce(16, 8)], "passed"),  # activations: it may be a part that began as zeros
        ((0.0, 0.0), [all_reduce(16, 8, moves="gradient")], "failed"),
    ],
)
def test_a_parameter_that_is_not_reduced_beside_others_fails_if_it_is_a_copy(
    begun: Sequence[float], exchange: list[Record], status: str
) -> None:
    def beside(rank: int) -> list[Record]:
        found: list[Record] = [SketchedTensors(0, ROWS)]
        for nth in range(1, 6):
            owns = [[own(each, nth, row) for each in range(2)] for row in range(2)]
            mine = (owns[0][rank], owns[1][rank])
            ends = [
                tuple(one + begun[rank] + moved for one in WEIGHTS[1])
                for moved in (0.1 * rank * nth - 0.1 * rank, 0.1 * rank * nth)
            ]
            found += [*exchange, step(nth)]
            values: dict[str, Any] = {"own": mine, "used": (mean(owns[0]), mine[1]), "backwards": 1, "mean_times": 1.0}
            before, after = ((WEIGHTS[0], end) for end in ends)
            found.append(SketchedStep(0, nth, before=before, after=after, type="SGD", at=AT, **values))
        return found

    result = gradient_mean.judge(case({rank: beside(rank) for rank in range(2)}))

    assert result.status == status
    assert "1 of group 0" in result.detail
    assert ("1 of 2 parameters (1 of group 0)" in result.unjudged) == (status == "passed")


def test_two_heads_that_are_crossed_fail_although_the_rest_is_reduced() -> None:
    rows = (*ROWS, SketchedTensor(None, "2 of group 0", (2, 2)))
    weights = (*WEIGHTS, (0.3, 0.8, -0.6, 0.2))

    def crossed(rank: int) -> list[Record]:
        found: list[Record] = [SketchedTensors(0, rows)]
        for nth in range(1, 6):
            owns = [[own(each, nth, row) for row in range(3)] for each in range(2)]
            swapped = mean([owns[rank][1], owns[1 - rank][2]]), mean([owns[rank][2], owns[1 - rank][1]])
            used = (mean([owns[0][0], owns[1][0]]), *swapped)
            values: dict[str, Any] = {"own": tuple(owns[rank]), "before": weights, "after": weights}
            found.append(SketchedStep(0, nth, used=used, type="SGD", at=AT, **values))
        return found

    result = gradient_mean.judge(case({rank: crossed(rank) for rank in range(2)}))

    assert result.status == "failed"
    assert "the gradient of 1 of group 0 on rank 0 was reduced with that of 2 of group 0 on rank 1" in result.detail


@pytest.mark.parametrize(
    ("passes", "backwards", "status"),
    [
        ("fbr fb fb", 3, "failed"),
        ("fb fb fbr", 3, "not-applicable"),
        ("fbr fbr fbr", 3, "not-applicable"),
        ("fbr fb", 1, "not-applicable"),  # it is another optimizer's pass
        ("fbr ff", 2, "not-applicable"),  # it evaluates
        ("fbr tttt", 2, "not-applicable"),  # another model does
    ],
)
def test_fsdp_reduces_in_the_last_backward_pass_of_a_step(passes: str, backwards: int, status: str) -> None:
    """Weights are gathered forward and backward; another model has others."""

    def sharded(_: int) -> list[Record]:
        found: list[Record] = []
        for nth in range(1, 5):
            for each in passes.replace(" ", ""):
                op = "reduce_scatter_tensor" if each == "r" else "all_gather_into_tensor"
                line, size = (9 if each in "br" else 8), (6 if each == "t" else 4)
                found.append(Collective(op, (0, 1), shapes=((size,),), by_fsdp=True, at=("/work/train.py", line)))
            found.append(OptimizerStep(nth, 0, nth, AT, backwards=backwards))
        return found

    result = gradient_mean.judge(case({rank: sharded(rank) for rank in range(2)}))

    assert (result.status, at(result)) == (status, AT if status == "failed" else None)
