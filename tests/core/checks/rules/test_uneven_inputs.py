"""A rank that has no batch left while others train fails, unless join() or the script itself handles that."""

from __future__ import annotations

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED
from compose_sim.core.checks.rules.progress import uneven_inputs
from compose_sim.node.records.data import Batch, EpochProgress, Join
from compose_sim.node.records.models import LossValue
from compose_sim.node.records.script import LaunchEnvironment, ScriptEnd
from tests.core.checks.rules.cluster import Records, at, case
from tests.core.checks.rules.loading import epoch, loader
from tests.core.checks.rules.replicas import all_reduce, ddp, forward, step


def broken_off(notes: Records) -> Records:
    """As a rank leaves it that was ended in its last backward: one step less is noted, and no end."""
    closed = EpochProgress(0, 0, "trained", batches=1, trained=True, synchronized=1)
    return [*notes[:-1], closed]


def test_a_rank_that_went_on_alone_fails_the_run_that_broke_off() -> None:
    notes = {0: [ddp(), loader(), *epoch(range(6))], 1: [ddp(), loader(), *broken_off(epoch(range(8)))]}
    result = uneven_inputs.judge(case(notes, verdict="hung"))
    assert result.status == FAILED
    assert "rank 0 had no batch left in epoch 0" in result.detail
    assert result.detail.endswith("after 3 batches, while rank 1 continued to batch 4")


def test_a_rank_that_stops_after_an_epoch_of_equal_length_is_no_lack_of_batches() -> None:
    again = epoch(range(2), number=1, exhausted=False)
    notes = {0: [ddp(), loader(), *epoch(range(6)), ScriptEnd()], 1: [ddp(), loader(), *epoch(range(6)), *again]}
    result = uneven_inputs.judge(case(notes))
    assert (result.status, result.ranks) == (FAILED, (0,))
    assert "rank 0 stopped after epoch 0 of" in result.detail
    assert result.detail.endswith("rank 1 began epoch 1: ranks decide alone when to stop")


def test_batches_whose_gradients_only_add_up_are_counted_apart() -> None:
    notes = {rank: [ddp(), loader(), *epoch(range(8), synchronized=3)] for rank in range(2)}
    assert (
        uneven_inputs.judge(case(notes)).detail
        == "ranks had equally many batches (4), and reduced gradients after 3 of them"
    )


def test_join_answers_for_ranks_without_batches() -> None:
    joined = Join(enabled=True)
    notes = {0: [ddp(), loader(), joined, *epoch(range(6))], 1: [ddp(), loader(), joined, *epoch(range(8))]}
    assert uneven_inputs.judge(case(notes)).status == PASSED


def test_a_batch_that_is_taken_but_not_trained_on_passes() -> None:
    more = epoch(range(8), exhausted=False, synchronized=3)
    assert (
        uneven_inputs.judge(case({0: [ddp(), loader(), *epoch(range(6))], 1: [ddp(), loader(), *more]})).status
        == PASSED
    )


def test_a_rank_that_begins_its_shard_again_passes() -> None:
    again = epoch(range(2), number=1, exhausted=False)
    notes = {0: [ddp(), loader(), *epoch(range(6)), *again], 1: [ddp(), loader(), *epoch(range(8), exhausted=False)]}
    assert uneven_inputs.judge(case(notes)).status == PASSED


def test_a_run_that_broke_off_between_epochs_of_equal_length_passes() -> None:
    begun = epoch(range(2), number=1)[:-1]
    notes = {0: [ddp(), loader(), *epoch(range(6))], 1: [ddp(), loader(), *epoch(range(6)), *begun]}
    assert uneven_inputs.judge(case(notes, verdict="failed")).status == PASSED


@pytest.mark.parametrize(
    ("raised", "status"),
    [("EOFError: Ran out of input", "not-applicable"), ("RuntimeError: [gloo] Connection closed by peer", FAILED)],
)
def test_a_rank_that_raised_between_epochs_is_no_lack_of_batches(raised: str, status: str) -> None:
    again = epoch(range(2), number=1)
    notes = {0: [ddp(), loader(), *epoch(range(6)), *again], 1: [ddp(), loader(), *epoch(range(6)), ScriptEnd(raised)]}
    assert uneven_inputs.judge(case(notes, verdict="failed")).status == status


def test_without_a_loader_the_calls_of_the_model_are_counted() -> None:
    barrier = all_reduce(op="barrier", at=("/work/train.py", 30))
    short = [ddp(), *[forward(), step(1)] * 2, barrier]
    long = [ddp(), *[forward(), step(1)] * 2, forward()]
    result = uneven_inputs.judge(case({0: short, 1: long}, verdict="hung"))
    assert result.status == NOT_APPLICABLE  # the barrier may stand in a branch of rank 0
    for launched in ([], [LaunchEnvironment(local_rank=1)]):
        result = uneven_inputs.judge(case({0: long, 1: [*launched, *short]}, verdict="hung"))
        assert result.detail.startswith("rank 1 ended after 2 batches, while rank 0 continued to batch 3")


def test_the_first_rank_of_each_node_may_be_in_a_branch() -> None:
    barrier = all_reduce(op="barrier", at=("/work/train.py", 30))
    first = [ddp(), forward(), step(1), barrier]
    second = [LaunchEnvironment(local_rank=1), ddp(), forward(), step(1), forward()]
    assert (
        uneven_inputs.judge(case({0: first, 1: second, 2: first, 3: second}, verdict="hung")).status == NOT_APPLICABLE
    )


def test_a_rank_that_failed_by_itself_is_no_lack_of_batches() -> None:
    raised = ScriptEnd("KeyError: 'label'")
    notes = {
        0: [ddp(), forward(), step(1), forward()],
        1: [LaunchEnvironment(local_rank=1), ddp(), forward(), raised],
    }
    assert uneven_inputs.judge(case(notes, verdict="failed")).status == NOT_APPLICABLE


def test_a_rank_that_stands_still_between_two_steps_is_no_lack_of_batches() -> None:
    common = [ddp(), *[forward(), step(1), all_reduce()] * 2]
    notes = {0: [*common, forward()], 1: [LaunchEnvironment(local_rank=1), *common]}
    assert uneven_inputs.judge(case(notes, verdict="hung")).status == NOT_APPLICABLE


def test_a_run_of_which_nothing_was_observed_is_not_judged() -> None:
    result = uneven_inputs.judge(case({}, verdict="failed"))
    assert result.status == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("of_rank_1", "verdict", "status"),
    [
        ("fl f fl", "failed", FAILED),
        ("fl f fl", "passed", NOT_APPLICABLE),
        ("fl fl f", "failed", NOT_APPLICABLE),  # the run broke off before its backward pass
        ("fl fl fl", "failed", NOT_APPLICABLE),
    ],
)
def test_a_rank_that_skips_a_batch_alone_fails(of_rank_1: str, verdict: str, status: str) -> None:
    def passes(letters: str) -> Records:
        return [ddp(), *(forward() if letter == "f" else LossValue(0.5) for letter in letters.replace(" ", ""))]

    result = uneven_inputs.judge(case({0: passes("fl fl fl"), 1: passes(of_rank_1)}, verdict=verdict))

    assert result.status == status
    assert (result.ranks, at(result)) == (((1,), forward().at) if status == FAILED else ((), None))


@pytest.mark.parametrize(
    ("of_rank_1", "verdict", "status"),
    [
        ("b bf bf", "hung", FAILED),
        ("b bf bf", "passed", PASSED),
        ("bf bf b", "hung", NOT_APPLICABLE),  # the run broke off before the call
        ("bf bf bf", "hung", PASSED),
        ("b", "hung", NOT_APPLICABLE),
    ],
)
def test_a_batch_that_one_rank_takes_and_never_gives_the_model_fails(of_rank_1: str, verdict: str, status: str) -> None:
    def taken(words: str) -> Records:
        words_of = words.split()
        begun = EpochProgress(0, 0, "begun", trained=True, batches=len(words_of), synchronized=words.count("f"))
        used = [[Batch(0, 0, at), *([forward()] if "f" in word else ())] for at, word in enumerate(words_of)]
        return [ddp(), loader(), begun, *(each for word in used for each in word)]

    result = uneven_inputs.judge(case({0: taken("bf bf bf"), 1: taken(of_rank_1)}, verdict=verdict))

    assert result.status == status
    assert (result.ranks, at(result)) == (((1,), forward().at) if status == FAILED else ((), None))
    assert ("rank 1 took batch 1 of epoch 0" in result.detail) == (status == FAILED)
