"""Gradients of many ranks must equal those of one rank with the same batches, unless there is a good reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED, Case
from compose_sim.core.checks.rules.replays import matches_single, needs_alone
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.replays import ChosenSamples
from tests.core.checks.rules.cluster import at, observe
from tests.core.checks.rules.replays import AT, case, recorded, replayed, step

PARTED = [step(0), step(1, difference=0.4, cosine=0.9)]


def test_equal_gradients_pass() -> None:
    assert matches_single.judge(case(step(0), step(1))).status == PASSED


def test_the_step_and_tensor_that_part_are_named() -> None:
    judged = case(*PARTED, alone=(step(0), step(1, difference=0.4, cosine=0.9)))
    result = matches_single.judge(judged)
    assert result.status == FAILED
    assert result.detail.startswith("step 2, head.weight:")
    assert at(result) == ("/work/train.py", 31)


def test_ranks_that_are_right_alone_and_not_together_warn_where_that_is_clear() -> None:
    differ = [step(0, difference=0.3, cosine=0.97), step(1, difference=0.4, cosine=0.9)]
    assert needs_alone(case(*differ))
    result = matches_single.judge(case(*differ, alone=(step(0), step(1))))
    assert result.status == WARNED
    assert result.detail.startswith("step 2, head.weight: one rank with the batches of all 4 has another gradient")
    assert matches_single.judge(case(step(0), step(1), *PARTED[1:], alone=(step(0), step(1)))).status == PASSED
    low = [step(0, precision="low", difference=0.1, cosine=0.99)]
    assert matches_single.judge(case(*low, alone=(step(0),))).status == PASSED


@pytest.mark.parametrize(
    ("optimizer", "least_cosine", "status"),
    [("AdamW", 1.0, WARNED), ("SGD", 1.0, FAILED), ("AdamW", 0.9, FAILED)],
    ids=["a factor of each tensor, undone", "a factor of each tensor", "other directions"],
)
def test_factors_of_single_tensors_only_warn_if_the_optimizer_undoes_them(
    optimizer: str, least_cosine: float, status: str
) -> None:
    sketched = SketchedStep(0, 1, (None,), (None,), (None,), (None,), type=optimizer)
    ranks = {rank: observe(rank, [*recorded().ranks[rank].records, sketched]) for rank in range(4)}
    differ = [step(number, difference=1.0, cosine=0.9, least_cosine=least_cosine) for number in range(2)]
    judged = case(*differ, observed=Observed(ranks=ranks), alone=differ)
    assert matches_single.judge(judged).status == status


def test_padding_to_another_length_is_no_certain_mistake() -> None:
    differ = [
        step(0, difference=0.06, cosine=0.999, collated=True),
        step(1, difference=0.05, cosine=0.999, collated=True),
    ]
    alone = [replace(each, collated=False) for each in differ]
    assert matches_single.judge(case(*differ, alone=alone)).status == WARNED
    assert matches_single.judge(case(differ[0], alone[1], alone=alone)).status == FAILED


def test_batches_that_cannot_be_joined_never_fail() -> None:
    ragged = [step(0, why_not="ranks have batches of different shapes (8×9, 8×11)", difference=0.4)]
    assert needs_alone(case(*ragged))
    assert matches_single.judge(case(*ragged, alone=(step(0, difference=0.4, cosine=0.99),))).status == NOT_APPLICABLE
    assert matches_single.judge(case(*ragged, alone=(step(0),))).status == PASSED


def test_a_factor_fails_without_more_runs() -> None:
    judged = case(*(step(number, ratio=4.0, difference=3.0) for number in range(3)))
    assert not needs_alone(judged)
    assert matches_single.judge(judged).status == FAILED


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (recorded(drew=("torch",)), "draws random numbers (torch)"),
        (recorded(batchnorm=("module.bn1",)), "BatchNorm (bn1)"),
    ],
)
def test_what_differs_rightly_is_not_judged(observed: object, words: str) -> None:
    result = matches_single.judge(replace(case(*PARTED), observed=observed))
    assert result.status == NOT_APPLICABLE
    assert words in result.detail


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"ranks": ()}, "no model is wrapped"),
        ({"ranks": (2,)}, "joins 2 of 4 ranks"),
        ({"optimizer_types": ("ZeroRedundancyOptimizer",)}, "ZeroRedundancyOptimizer"),
        ({"hooks": ("powerSGD_hook",)}, "powerSGD_hook"),
    ],
)
def test_what_cannot_be_repeated_says_why(models: dict[str, object], words: str) -> None:
    result = matches_single.judge(replace(case(), observed=recorded(**models), single=None))
    assert result.status == NOT_APPLICABLE
    assert words in result.detail


def test_an_unknown_communication_hook_may_change_gradients() -> None:
    judged = case(*PARTED, observed=recorded(hooks=("sparsify",)), alone=(step(0, difference=0.4, cosine=0.9),))
    assert matches_single.judge(judged).status == NOT_APPLICABLE


def test_few_digits_part_more() -> None:
    assert matches_single.judge(case(step(0, precision="low", difference=2e-2))).status == PASSED
    assert (
        matches_single.judge(replace(case(step(0, difference=2e-2), alone=(step(0, difference=2e-2),)))).status
        == FAILED
    )


def test_up_which_records_no_steps_does_not_say_that_there_were_none() -> None:
    stepped = Observed(ranks={rank: observe(rank, [OptimizerStep(1, 0, 1, AT)]) for rank in range(2)})

    result = matches_single.judge(Case(observed=stepped, verdict="passed"))

    assert (result.status, result.detail) == (NOT_APPLICABLE, "only `composesim check` replays the script")


def test_a_parameter_that_all_ranks_hold_fails_beside_those_in_parts() -> None:
    assert matches_single.judge(case(step(0, difference=2.3, cosine=0.93, ratio=3.0, parts=2))).status == FAILED
    assert matches_single.judge(case(step(0, parts=2))).status == PASSED


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({}, "all ranks hold this parameter"),
        ({"is_part": True}, "the gradients of the parts, put together"),
        ({"of_update": True}, "clips by the norm of what it holds"),
    ],
)
def test_what_differs_of_parts_is_named(more: dict[str, bool], what: str) -> None:
    result = matches_single.judge(case(step(0, difference=0.5, cosine=0.9, ratio=0.7, parts=2, **more)))

    assert result.status == FAILED
    assert what in result.detail


@pytest.mark.parametrize(("in_backward", "status"), [(2, FAILED), (0, WARNED)])
def test_ranks_that_could_not_be_repeated_alone_differ_for_a_reason(in_backward: int, status: str) -> None:
    """Whether gradients flow between ranks decides whether each of them may be right by itself."""
    sketched = SketchedStep(0, 1, (None,), (None,), (None,), (None,), in_backward=in_backward)
    ranks = {rank: replace(each, records=(*each.records, sketched)) for rank, each in recorded().ranks.items()}
    steps = [step(number, difference=0.6, cosine=0.9) for number in range(3)]
    result = matches_single.judge(replace(case(*steps), observed=Observed(ranks=ranks)))

    assert (result.status, at(result)) == (status, AT)


def test_small_differences_of_ranks_that_could_not_be_repeated_alone_are_not_judged() -> None:
    assert matches_single.judge(case(*(step(number, difference=2e-3) for number in range(3)))).status == NOT_APPLICABLE


def test_samples_that_one_rank_would_not_choose_are_warned_of() -> None:
    def judged(*passages: ChosenSamples, **more: float) -> str:
        single = replayed(step(0), *passages, step(1, **more))
        return matches_single.judge(replace(case(), single=single)).status

    first, other = ChosenSamples(0, 0, "Pictures", 100, 30, 0, True), ChosenSamples(1, 0, "Pictures", 80, 25, 50, False)
    assert judged(first, other) == WARNED
    assert judged(first, first, other) == WARNED
    right = [
        [first],
        [other],  # never alike
        [first, replace(other, others=4)],  # rounding
        [first, replace(other, drawn=20, others=10)],
        [replace(first, shared=0), other],  # whole epochs, or shares of ranks
        [first, replace(other, shared=0)],
        [replace(first, ended=False), other],
        [replace(first, data="Words"), other],
    ]
    for passages in right:
        assert judged(*passages) == PASSED
    assert judged(first, other, difference=5e-4) == PASSED  # what is drawn may have been rounded
