"""Ranks that issue other collectives than their group fail, with the kind of difference; legitimate differences pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.collectives import collective_mismatch
from compose_sim.core.checks.rules.progress import uneven_inputs
from compose_sim.core.report.report import Cause
from compose_sim.core.verdict.stalled_rank import Standing
from compose_sim.node.records.data import EpochProgress
from compose_sim.node.records.process_groups import (
    Collective,
    DdpForward,
    LaterCollectives,
    LaterInGroup,
    LostResult,
    ReducedAgain,
    SharedBuffer,
    TakenFromAny,
)
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import ScriptEnd
from tests.core.checks.rules.cluster import WORLD, at, collective, two_nodes
from tests.core.checks.rules.loading import epoch, loader
from tests.core.checks.rules.replicas import ddp, step

BARRIER = collective("barrier")
FORWARD = DdpForward(0, WORLD)


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (collective("broadcast", 4, root=0, line=8), "collective"),
        (collective("all_reduce", 6), "shape"),
        (collective("all_reduce", 4, dtype="int32"), "dtype"),
        (collective("all_reduce", 4, reduce="MAX"), "reduction"),
    ],
)
def test_each_difference_is_named(odd: Collective, what: str) -> None:
    result = collective_mismatch.judge(
        two_nodes(lambda rank: [BARRIER, odd if rank == 2 else collective("all_reduce", 4)])
    )
    assert result.status == FAILED
    assert f"collective 2 of group [0, 1, 2, 3] differs in its {what}: ranks 0, 1, 3 all_reduce" in result.detail
    assert (result.ranks, at(result)) == ((2,), odd.at)


def test_a_root_that_differs_fails() -> None:
    assert (
        collective_mismatch.judge(two_nodes(lambda rank: [collective("broadcast", 4, root=rank % 2)])).status == FAILED
    )


def test_shapes_that_were_agreed_on_pass() -> None:
    peers = ((1,), (2,), (3,), (4,))
    assert (
        collective_mismatch.judge(two_nodes(lambda rank: [collective("all_gather", rank + 1, peers=peers)])).status
        == PASSED
    )
    assert collective_mismatch.judge(two_nodes(lambda rank: [collective("all_gather", rank + 1)])).status == FAILED
    assert (
        collective_mismatch.judge(
            two_nodes(lambda rank: [collective("broadcast", *([] if rank else [1]), root=0)])
        ).status
        == PASSED
    )


@pytest.mark.parametrize(("expected", "status"), [((1, 2, 3, 4), PASSED), ((1, 2, 3, 5), FAILED)])
def test_each_rank_sends_what_the_other_expects(expected: tuple[int, ...], status: str) -> None:
    """Rank r sends each rank r + 1 rows; what rank 2 expects is given."""

    def exchange(rank: int) -> Collective:
        return collective("all_to_all_single", sends=(rank + 1,) * 4, receives=expected if rank == 2 else (1, 2, 3, 4))

    assert collective_mismatch.judge(two_nodes(lambda rank: [exchange(rank)])).status == status


def test_groups_are_judged_each_alone() -> None:
    pair = collective("all_reduce", 4, group=(0, 1), name="1")
    assert (
        collective_mismatch.judge(two_nodes(lambda rank: [BARRIER, *([pair, pair] if rank < 2 else [])])).status
        == PASSED
    )


def test_a_call_of_one_rank_alone_fails_though_the_run_passed() -> None:
    result = collective_mismatch.judge(
        two_nodes(lambda rank: [BARRIER, *([collective("broadcast", 1, line=31)] if rank == 0 else []), ScriptEnd()])
    )
    assert result.status == FAILED
    assert "ranks 1, 2, 3 never called broadcast (train.py, line 31)" in result.detail


def test_a_rank_that_raised_is_not_one_that_forgot() -> None:
    cause = Cause(kind="exception", rank=2, message="ValueError: no such file")
    case = two_nodes(
        lambda rank: [BARRIER, *([ScriptEnd("ValueError")] if rank == 2 else [BARRIER])],
        verdict="failed",
        cause=cause,
    )
    assert collective_mismatch.judge(case).status == NOT_APPLICABLE


@pytest.mark.parametrize("verdict", ["passed", "failed", "hung", "timeout", "interrupted", "inconclusive"])
def test_unequal_counts_never_pass(verdict: str) -> None:
    case = two_nodes(lambda rank: [BARRIER] * (50 if rank else 55), verdict=verdict)
    result = collective_mismatch.judge(case)
    assert result.status == (FAILED if verdict == "passed" else NOT_APPLICABLE)
    assert "rank 0 issued 55 collectives in group [0, 1, 2, 3], ranks 1, 2, 3 only 50" in result.detail


def test_unequal_counts_fail_if_a_rank_crashed_after_all_scripts_had_ended() -> None:
    cause = Cause(kind="teardown", rank=0, message="SIGABRT")
    case = two_nodes(lambda rank: [*[BARRIER] * (50 if rank else 55), ScriptEnd()], verdict="failed", cause=cause)
    assert (collective_mismatch.judge(case).status, collective_mismatch.judge(case).ranks) == (FAILED, (1, 2, 3))


@pytest.mark.parametrize("verdict", ["hung", "timeout", "interrupted"])
@pytest.mark.parametrize(
    "end",
    [
        {"script_ended": True},
        {"frames": (("/site-packages/torch/distributed/distributed_c10d.py", 2400, "destroy_process_group"),)},
    ],
    ids=["after the script", "in destroy_process_group"],
)
def test_unequal_counts_fail_if_the_ranks_hung_at_their_end(verdict: str, end: Mapping[str, Any]) -> None:
    stalls = tuple(Standing(rank=rank, node=f"node-{rank // 2}", **end) for rank in WORLD)
    case = two_nodes(
        lambda rank: [BARRIER, *([collective("barrier", line=9)] * 5 if rank == 0 else []), *[BARRIER] * 49],
        verdict=verdict,
        stalls=stalls,
    )
    result = collective_mismatch.judge(case)
    assert (result.status, result.ranks, at(result)) == (FAILED, (1, 2, 3), ("/work/train.py", 9))


@pytest.mark.parametrize(("waits_in", "status"), [("", NOT_APPLICABLE), ("recv (train.py, line 12)", FAILED)])
def test_a_rank_that_sleeps_in_its_own_code_may_come_to_the_collective_of_the_others(
    waits_in: str, status: str
) -> None:
    """`hang` names its line; the advice of this check, to move the collective out of a branch, would be wrong."""
    stalls = tuple(
        Standing(rank=rank, node="node-0", doing="sleeping", waits_in=waits_in if rank == 2 else "barrier #2")
        for rank in WORLD
    )
    case = two_nodes(lambda rank: [BARRIER, FORWARD, *([] if rank == 2 else [BARRIER])], verdict="hung", stalls=stalls)

    assert collective_mismatch.judge(case).status == status


def test_collectives_that_were_too_many_to_note_are_counted_in_each_group() -> None:
    def records(later: int) -> list[Record]:
        more = LaterCollectives((LaterInGroup(WORLD, "0", later, 77),))
        return [BARRIER, more, ScriptEnd()]

    same = collective_mismatch.judge(two_nodes(lambda rank: records(3)))
    assert (same.status, same.detail.split()[0]) == (PASSED, "16")
    fewer = collective_mismatch.judge(two_nodes(lambda rank: records(3 if rank else 8)))
    assert (fewer.status, fewer.ranks) == (FAILED, (1, 2, 3))


def test_ranks_that_ran_out_of_batches_are_left_to_uneven_inputs() -> None:
    def records(rank: int) -> list[Record]:
        batches = epoch(range(6 if rank == 1 else 8), exhausted=rank == 1)
        return [ddp(), loader(), *batches, *[FORWARD] * (3 if rank == 1 else 4), *([BARRIER] if rank == 1 else [])]

    case = two_nodes(records, verdict="hung")
    assert (collective_mismatch.judge(case).status, uneven_inputs.judge(case).status) == (NOT_APPLICABLE, FAILED)


def test_what_uneven_inputs_cannot_judge_is_not_left_to_it() -> None:
    """Without a loader, rank 0 alone reduces, and the process ends when gloo sees the gradients of the others."""
    alone = collective("all_reduce", line=16)
    cause = Cause(kind="signal", rank=0, node="node-0", message="rank 0 was killed by SIGABRT")
    case = two_nodes(lambda rank: [FORWARD, *([alone] if rank == 0 else [FORWARD])], verdict="failed", cause=cause)
    result = collective_mismatch.judge(case)
    assert (result.status, result.ranks, at(result)) == (FAILED, (1, 2, 3), alone.at)
    assert uneven_inputs.judge(case).status == NOT_APPLICABLE


def test_an_extra_barrier_at_the_end_of_an_epoch_is_not_a_lack_of_batches() -> None:
    ended = EpochProgress(0, 0, "exhausted", batches=1)
    case = two_nodes(lambda rank: [FORWARD, ended, BARRIER if rank == 0 else FORWARD], verdict="hung")
    assert collective_mismatch.judge(case).status == FAILED


@pytest.mark.parametrize(
    ("values", "trains", "status"),
    [
        (lambda rank: (), True, WARNED),  # many numbers
        (lambda rank: (float(rank),), True, WARNED),
        (lambda rank: (0.0,), True, PASSED),  # a barrier
        (lambda rank: (), False, PASSED),  # a benchmark
    ],
)
def test_a_result_that_nothing_can_use_is_warned_of(
    values: Callable[[int], tuple[float, ...]], trains: bool, status: str
) -> None:
    def records(rank: int) -> list[Record]:
        reduced = collective("all_reduce", 4, values=values(rank), line=9)
        return [*([step(1)] if trains else []), reduced, LostResult(reduced.at), reduced, ScriptEnd()]

    result = collective_mismatch.judge(two_nodes(records))

    assert result.status == status
    assert at(result) == (("/work/train.py", 9) if status == WARNED else None)


@pytest.mark.parametrize(
    ("times", "of_all", "status"),
    [
        (2, True, PASSED),
        (3, True, FAILED),
        (3, False, PASSED),
    ],  # one rank may keep the total, and the others begin again
)
def test_counts_that_are_reduced_with_their_last_sum_fail(times: int, of_all: bool, status: str) -> None:
    def records(rank: int) -> list[Record]:
        reduced = collective("all_reduce", 4, line=9)
        again = [ReducedAgain(reduced.at)] if of_all or rank == 0 else []
        return [reduced, *[reduced, *again] * times]

    result = collective_mismatch.judge(two_nodes(records))

    assert result.status == status
    assert at(result) == (("/work/train.py", 9) if status == FAILED else None)


@pytest.mark.parametrize(
    ("senders", "status"),
    [
        ([1, 1, 2, 3, 3, 2], WARNED),
        ([1, 1, 2, 2, 3, 3], NOT_APPLICABLE),
        ([1, 3, 2, 3, 1, 3], NOT_APPLICABLE),  # one kind of message from these, and another from that one
    ],
)
def test_the_parts_of_a_message_that_come_from_two_senders_warn(senders: list[int], status: str) -> None:
    taken = [
        TakenFromAny(sender, ((4,), (4, 2))[number % 2], ("/work/train.py", 8 + number % 2))
        for number, sender in enumerate(senders)
    ]

    result = collective_mismatch.judge(two_nodes(lambda rank: [ScriptEnd()] if rank else [*taken, ScriptEnd()]))

    assert result.status == status
    assert at(result) == (("/work/train.py", 9) if status == WARNED else None)


@pytest.mark.parametrize(("before", "after", "status"), [(0, 3, FAILED), (0, 2, PASSED), (3, 0, PASSED)])
def test_a_list_that_holds_one_tensor_several_times_in_the_training_fails(before: int, after: int, status: str) -> None:
    shared = SharedBuffer("all_gather", ("/work/train.py", 8))

    def records(_: int) -> list[Record]:
        return [*[shared] * before, step(1), *[shared] * after, BARRIER, ScriptEnd()]

    result = collective_mismatch.judge(two_nodes(records))

    assert result.status == status
    assert at(result) == (("/work/train.py", 8) if status == FAILED else None)
