"""Ranks are compared by name, at equal steps, and only where they should be alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED, Result
from compose_sim.core.checks.rules.replicas import params_in_sync
from compose_sim.core.checks.rules.wrapping import divided_apart
from compose_sim.node.records.data import Join, LoaderInfo
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.models import (
    BY_HAND,
    EvaluatedModel,
    TensorHashes,
    TensorRow,
    TensorTable,
    UnusedParameters,
    WeightsBeforeSharding,
)
from compose_sim.node.records.process_groups import ProcessGroup, UntrackedWait
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import ScriptEnd
from compose_sim.node.records.timings import StepTimes, Wait
from tests.core.checks.rules.cluster import Records, at, case
from tests.core.checks.rules.replicas import AT, all_reduce, ddp, forward, state, step, table

GROUP = ProcessGroup(world_size=2, backend="gloo")
JOIN = Join(enabled=True)


def training(*values: str, model: int | None = 0, kind: str = "parameter") -> Records:
    """A rank whose only tensor held these values before its steps."""
    notes = [table("weight", model=model, kind=kind)]
    for nth, value in enumerate(values):
        notes += [forward(), state(nth, value), step(nth + 1)]
    return notes


def test_equal_tensors_pass() -> None:
    result = params_in_sync.judge(case({rank: [ddp(), *training("a", "b", "c")] for rank in range(2)}))
    assert result.status == PASSED
    assert "after each of 2 sampled steps" in result.detail


def test_parameters_of_no_model_are_not_compared() -> None:
    sketched = ((None,), (None,), ((0.5,),), ((0.5,),))
    stale = [SketchedTensors(0, (SketchedTensor(None, "weight", (4, 2)),))]
    stale += [SketchedStep(0, nth, *sketched, copy_of=0) for nth in (1, 2)]
    result = params_in_sync.judge(case({rank: [ddp(), *training("a", "a", "a"), *stale] for rank in range(2)}))
    assert (result.status, result.judged_by) == (NOT_APPLICABLE, "gradient-mean")


def test_the_first_step_and_tensor_that_differ_are_named_with_the_ranks_that_agree() -> None:
    ranks = {rank: [ddp(range(4)), *training("a", "b", "cd"[rank % 2], "ef"[rank % 2])] for rank in range(4)}
    result = params_in_sync.judge(case(ranks))
    assert result.status == FAILED
    assert result.detail.startswith(
        "after step 2 parameter weight (4×2) differs between ranks (ranks 0, 2 against ranks 1, 3)"
    )
    assert at(result) == ("/work/train.py", 7)


def test_ranks_that_average_now_and_then_pass() -> None:
    ranks = {rank: [ddp(), *training("a", f"b{rank}", f"c{rank}", "d", f"e{rank}")] for rank in range(2)}
    assert params_in_sync.judge(case(ranks)).status == PASSED


def test_ranks_that_exchange_their_parameters_may_differ_whenever_they_are_looked_at() -> None:
    def exchanging(**what: str) -> Result:
        notes = {rank: [ddp(), *training("a", f"b{rank}", f"c{rank}"), all_reduce(4, 2, **what)] for rank in range(2)}
        return params_in_sync.judge(case(notes))

    assert exchanging().status == NOT_APPLICABLE
    assert exchanging(moves="parameter").status == NOT_APPLICABLE
    assert exchanging(moves="gradient").status == FAILED


def test_weights_that_are_shared_before_the_first_step_excuse_nothing() -> None:
    ranks = {rank: [ddp(), all_reduce(4, 2), *training("a", f"b{rank}", f"c{rank}")] for rank in range(2)}
    assert params_in_sync.judge(case(ranks)).status == FAILED


def test_a_metric_that_is_reduced_excuses_nothing() -> None:
    ranks = {rank: [ddp(), all_reduce(), *training("a", f"b{rank}")] for rank in range(2)}
    assert params_in_sync.judge(case(ranks)).status == FAILED


def test_models_are_compared_within_their_own_group_of_ranks() -> None:
    ranks = {rank: [ddp((0, 1) if rank < 2 else (2, 3)), *training("a", "bc"[rank // 2])] for rank in range(4)}
    assert params_in_sync.judge(case(ranks)).status == PASSED


def test_ranks_that_took_different_numbers_of_steps_are_compared_at_those_they_share() -> None:
    ranks = {0: [ddp(), *training("a", "b", "c")], 1: [ddp(), *training("a", "b"), state(1, "x", final=True)]}
    assert params_in_sync.judge(case(ranks)).status == PASSED


def test_what_differs_only_when_the_script_ends_was_loaded_there() -> None:
    ranks = {rank: [ddp(), *training("a", "b"), state(2, f"best{rank}", final=True)] for rank in range(2)}
    assert params_in_sync.judge(case(ranks)).status == PASSED


def test_without_any_wrapper_each_rank_trains_alone() -> None:
    ranks = {rank: [GROUP, *training("a", f"b{rank}", model=None)] for rank in range(2)}
    result = params_in_sync.judge(case(ranks))
    assert result.status == FAILED
    assert "no DistributedDataParallel" in result.detail


@pytest.mark.parametrize(("shape", "in_forward", "said"), [((7,), 1, "line 7"), ((7,), 0, ""), ((1,), 1, "")])
def test_ranks_that_exchange_large_tensors_in_forward_train_one_model_without_a_wrapper(
    shape: tuple[int, ...], in_forward: int, said: str
) -> None:
    def records(rank: int) -> Records:
        values = (1.0,) if shape == (1,) else ()
        found: list[Record] = [GROUP, *training("a", *(f"{nth}{rank}" for nth in range(5)), model=None)]
        for nth in range(1, 6):
            found += [all_reduce(*shape, values=values), SketchedStep(0, nth, (), (), (), (), in_forward=in_forward)]
        return found

    result = params_in_sync.judge(case({rank: records(rank) for rank in range(2)}))

    assert result.status == FAILED
    assert ("all_reduce (train.py, line 7) in forward" in result.detail) is bool(said)


def test_ranks_that_send_each_other_messages_may_hold_different_parts() -> None:
    ranks = {rank: [GROUP, UntrackedWait("isend"), *training("a", f"b{rank}", model=None)] for rank in range(2)}
    assert params_in_sync.judge(case(ranks)).status == NOT_APPLICABLE


def test_sharded_parameters_are_not_judged() -> None:
    ranks = {rank: training("a", f"b{rank}", kind="sharded") for rank in range(2)}
    assert params_in_sync.judge(case(ranks)).status == NOT_APPLICABLE


def test_one_rank_has_nothing_to_agree_with() -> None:
    assert params_in_sync.judge(case({0: training("a", "b")})).status == NOT_APPLICABLE


def test_what_a_reduction_that_never_ended_left_different_is_its_fault() -> None:
    unused = UnusedParameters(0, ("bias",), count=1)
    ranks = {rank: [ddp(), *training("a", f"b{rank}"), unused] for rank in range(2)}
    assert params_in_sync.judge(case(ranks, verdict="failed")).status == NOT_APPLICABLE


def joined(*values: str) -> Records:
    """A rank that joins after as many steps as there are values after the first; all are equal again at the end."""
    return [table("weight"), JOIN, *training(*values)[1:]]


def test_ranks_that_join_early_are_compared_by_their_steps_within_the_join() -> None:
    again = [JOIN, state(2, "d"), step(3)]
    longer = [JOIN, state(3, "d"), step(4)]
    ranks = {0: [ddp(), *joined("a", "b"), *again], 1: [ddp(), *joined("a", "b", "c"), *longer]}
    assert params_in_sync.judge(case(ranks)).status == PASSED
    ranks[1][-2] = state(3, "e")
    assert params_in_sync.judge(case(ranks)).status == FAILED


@pytest.mark.parametrize(("kind", "status"), [("optimizer state", WARNED), ("buffer", FAILED)])
def test_ranks_that_leave_a_join_with_other_states_of_their_optimizer_are_warned_of(kind: str, status: str) -> None:
    tables = [TensorTable(0, 9, (TensorRow(kind, None, "kept", (4,)),))]
    ranks = {
        0: [ddp(), *joined("a", "b"), *tables, JOIN, state(2, "d"), step(3), state(3, "e")],
        1: [ddp(), *joined("a", "b", "c"), *tables, JOIN, state(3, "d"), step(4), state(4, "f")],
    }

    result = params_in_sync.judge(case(ranks))

    assert (result.status, result.ranks) == (status, (0, 1))


def test_the_end_of_a_join_hides_no_other_state_of_an_optimizer() -> None:
    tables = [TensorTable(0, 9, (TensorRow("optimizer state", None, "kept", (4,)),))]
    third = [JOIN, state(3, "g"), step(4)]  # as equal as after any join
    ranks = {
        0: [ddp(), *joined("a", "b"), *tables, JOIN, state(2, "d"), step(3), state(3, "e"), *third],
        1: [
            ddp(),
            *joined("a", "b", "c"),
            *tables,
            JOIN,
            state(3, "d"),
            step(4),
            state(4, "f"),
            JOIN,
            state(4, "g"),
            step(5),
        ],
    }

    result = params_in_sync.judge(case(ranks))

    assert (result.status, result.ranks) == (WARNED, (0, 1))


def test_a_rank_that_reduces_and_never_steps_fails_unless_it_is_sent_the_weights() -> None:
    def ranks(*more: Record) -> dict[int, Records]:
        return {0: [ddp(), *training("a", "b", "c", "d"), *more], 1: [ddp(), *[forward()] * 4, *more]}

    result = params_in_sync.judge(case(ranks()))

    assert (result.status, result.ranks) == (FAILED, (1,))
    assert params_in_sync.judge(case(ranks(*[all_reduce(4, 2)] * 3))).status == NOT_APPLICABLE


def sketched(used: Sequence[tuple[float, ...]], *, rank: int, differs: bool) -> Records:
    """Return steps without DDP, with the hashes of a parameter and the gradients that were computed and used."""
    notes: Records = [GROUP, table("weight", model=None), SketchedTensors(0, (SketchedTensor(None, "weight", (4, 2)),))]
    for nth, gradient in enumerate(used, 1):
        own = tuple(each + (rank * 2 - 1) for each in gradient)
        notes += [all_reduce(4, 2), state(nth - 1, f"{nth}{rank if differs else ''}"), step(nth)]
        notes.append(SketchedStep(0, nth, own=(own,), used=(gradient,), before=(gradient,), after=(gradient,)))
    return notes


def test_ranks_that_reduce_gradients_by_hand_must_hold_equal_weights() -> None:
    used = [(1.0, 2.0, 3.0, 4.0), (2.0, 5.0, 1.0, 7.0), (4.0, 4.0, 3.0, 1.0)]

    result = params_in_sync.judge(case({rank: sketched(used, rank=rank, differs=True) for rank in range(2)}))

    assert result.status == FAILED
    assert "began with different values" in result.detail
    assert (
        params_in_sync.judge(case({rank: sketched(used, rank=rank, differs=False) for rank in range(2)})).status
        == PASSED
    )


@pytest.mark.parametrize(("sent_again", "status"), [(False, FAILED), (True, PASSED)])
def test_a_step_that_one_rank_left_out_shows_although_too_few_follow_to_compare(sent_again: bool, status: str) -> None:
    def member(rank: int) -> Records:
        notes: Records = [
            GROUP,
            table("weight", model=None),
            SketchedTensors(0, (SketchedTensor(None, "weight", (4, 2)),)),
        ]
        made = 0
        for exchange in range(4):
            notes.append(all_reduce(4, 2))
            if rank == 1 and exchange == 2:  # its gradient was infinite
                continue
            made += 1
            weight = (exchange + 1.0, 2.0, 3.0, 1.0 if sent_again or exchange < 3 else 5.0 + rank)
            own, used = (1.0 + rank, 2.0, exchange, 1.0), (1.5, 2.0, exchange, 1.0)
            notes += [
                state(made - 1, f"{made}"),
                step(made),
                SketchedStep(0, made, (own,), (used,), (weight,), (weight,)),
            ]
        return notes

    result = params_in_sync.judge(case({rank: member(rank) for rank in range(2)}))

    assert result.status == status
    if status == FAILED:
        assert result.detail.startswith(
            "rank 1 exchanged gradients for step 3 of rank 0, but left it out (rank 0: 4, rank 1: 3"
        )
        assert (at(result), result.ranks) == (AT, (1,))


def test_a_rank_may_go_on_alone_after_the_others_waited_for_it() -> None:
    def member(rank: int) -> Records:
        notes: Records = [
            GROUP,
            table("weight", model=None),
            SketchedTensors(0, (SketchedTensor(None, "weight", (4, 2)),)),
        ]
        for made in range(1, 5 if rank == 0 else 4):
            notes.append(all_reduce(4, 2) if made < 4 else all_reduce(op="barrier"))
            weight, used = (made + 1.0, 2.0, 3.0, made / 2), (1.5, 2.0, made, 1.0)
            own = (1.0 + rank, *used[1:])
            notes += [
                state(made - 1, f"{made}"),
                step(made),
                SketchedStep(0, made, (own,), (used,), (weight,), (weight,)),
            ]
        return notes if rank == 0 else [*notes, all_reduce(op="barrier")]

    assert params_in_sync.judge(case({rank: member(rank) for rank in range(2)})).status == PASSED


def test_a_rank_that_left_out_a_step_is_named_with_the_numbers_of_steps() -> None:
    used = [(1.0, 2.0, 3.0, 4.0), (2.0, 5.0, 1.0, 7.0), (4.0, 4.0, 3.0, 1.0)]
    ranks = {rank: sketched(used[: 3 - rank], rank=rank, differs=False) for rank in range(2)}
    ranks[1].append(state(2, "3x"))
    ranks[0].append(state(3, "4"))

    assert "(rank 0: 3, rank 1: 2)" in params_in_sync.judge(case(ranks)).detail


def test_the_first_step_with_different_learning_rates_is_named() -> None:
    rates = {1: (0.1, 0.5), 2: (0.1, 0.25)}
    ranks = {
        rank: [
            *(ddp(), table("weight"), state(0, "a")),
            replace(step(1), rates=rates[1]),
            replace(step(2), rates=rates[rank + 1]),
            state(2, f"b{rank}"),
        ]
        for rank in range(2)
    }

    result = params_in_sync.judge(case(ranks))

    assert "different learning rates in step 2 (rank 0: 0.5, rank 1: 0.25)" in result.detail
    assert "scheduler" in result.fix


@pytest.mark.parametrize(
    ("samplers", "shape", "status"),
    [
        (("DistributedSampler",), (), WARNED),
        ((), (), NOT_APPLICABLE),  # each rank may have a task of its own
        (("DistributedSampler",), (8, 4), NOT_APPLICABLE),  # each rank may have the centers of some classes
    ],
)
def test_a_criterion_outside_of_the_wrapper_that_differs_from_the_start(
    samplers: tuple[str, ...], shape: tuple[int, ...], status: str
) -> None:

    def member(rank: int) -> Records:
        rows = TensorRow("parameter", 0, "weight", (4, 2)), TensorRow("parameter", None, "centers", (3, 2))
        notes: Records = [ddp(), LoaderInfo(0, "Faces", samplers=samplers), TensorTable(0, 0, rows)]
        for nth in range(3):
            exchanged = [all_reduce(*shape, op="all_gather")] if shape else []
            notes += [forward(), *exchanged, state(nth, f"w{nth}", f"c{nth}{rank}"), step(nth + 1)]
        return notes

    result = params_in_sync.judge(case({rank: member(rank) for rank in range(2)}))

    assert result.status == status
    assert "centers" in result.detail


def test_optimizer_state_that_differs_because_the_parameter_does_is_no_cause() -> None:
    def member(rank: int) -> Records:
        rows = (
            TensorRow("parameter", None, "weight", (4, 2), "float32", "cpu"),
            TensorRow("optimizer state", None, "weight: exp_avg", (4, 2), "float32", "cpu"),
        )
        notes: Records = [GROUP, TensorTable(0, 0, rows[:1]), state(0, f"a{rank}"), step(1), TensorTable(0, 1, rows)]
        return [*notes, TensorHashes(0, 1, 1, (f"b{rank}", f"c{rank}")), step(2)]

    assert (
        params_in_sync.judge(case({rank: member(rank) for rank in range(2)})).detail
        == "each rank trains its own model, which differed from the start"
    )


def test_state_that_only_one_rank_has_loaded_is_the_cause() -> None:
    def member(rank: int) -> Records:
        weight = TensorRow("parameter", 0, "weight", (4, 2), "float32", "cpu")
        momentum = TensorRow("optimizer state", 0, "weight: exp_avg", (4, 2), "float32", "cpu")
        begun = ((weight, momentum), ("a", "m")) if rank == 0 else ((weight,), ("a",))
        notes: Records = [ddp(), TensorTable(0, 0, begun[0]), state(0, *begun[1]), forward(), step(1)]
        return [*notes, TensorTable(0, 1, (weight,)), TensorHashes(0, 1, 1, (f"b{rank}",)), forward(), step(2)]

    result = params_in_sync.judge(case({rank: member(rank) for rank in range(2)}))

    assert result.status == FAILED
    assert "had state of it (exp_avg) on rank 0, and none on rank 1" in result.detail


@pytest.mark.parametrize(("by_hand", "found"), [(False, True), (True, False)])
def test_gradients_that_no_backward_pass_made_are_the_cause(by_hand: bool, found: bool) -> None:
    """The backward pass before the first update by hand is not counted, since the update is noticed after it."""
    kind = BY_HAND if by_hand else ""

    def member(rank: int) -> Records:
        notes: Records = [ddp(), table("weight")]
        for nth, value in enumerate(("a", f"b{rank}", f"c{rank}")):
            notes += [forward(), state(nth, value), replace(step(nth + 1, backwards=0), type=kind)]
        return notes

    result = params_in_sync.judge(case({rank: member(rank) for rank in range(2)}))

    assert result.status == FAILED
    assert ("torch.autograd.grad" in result.detail) is found


def replaced(rank: int, new: Callable[[int, list[float]], float], *, model: int | None = None) -> Records:
    """Return a rank that moves a weight by its own gradient; `new` makes of all ranks' weights the one before the next step."""
    notes: Records = [SketchedTensors(0, (SketchedTensor(model, "weight", (4, 2)),)), table("weight", model=model)]
    now = 1.0
    for nth in range(1, 6):
        ends = [now + 0.1 * (each + 1) * nth for each in range(2)]
        gradient = ((-0.1 * (rank + 1) * nth, 0.3),)
        values = {"before": ((now, 2.0),), "after": ((ends[rank], 2.0),), "own": gradient, "used": gradient}
        notes += [state(nth - 1, str(now)), step(nth), SketchedStep(0, nth, at=AT, **values)]
        now = new(nth, ends)
    return notes


@pytest.mark.parametrize(
    ("new", "model", "status"),
    [
        (lambda _, ends: ends[0], 0, FAILED),
        (lambda _, ends: ends[0], None, WARNED),
        (lambda nth, ends: ends[nth % 2], None, PASSED),  # the best of several, as in training by populations
        (lambda _, ends: sum(ends) / 2, None, PASSED),
    ],
)
def test_what_other_ranks_learn_is_not_overwritten(new: Any, model: int | None, status: str) -> None:
    ranks = {rank: [ddp(), GROUP, *replaced(rank, new, model=model)] for rank in range(2)}
    result = params_in_sync.judge(case(ranks))

    assert (result.status, result.ranks) == (status, () if status == PASSED else (1,))
    if status == PASSED:
        assert "apart after 4 steps" in result.detail


@pytest.mark.parametrize(
    ("root", "moves", "now", "status"),
    [
        (1, "parameter", 0.0, FAILED),
        (0, "parameter", 0.0, NOT_APPLICABLE),  # its own
        (1, "", 0.0, NOT_APPLICABLE),
        (1, "parameter", 1.0, NOT_APPLICABLE),  # another rank has made the step, too
    ],
)
def test_updates_are_not_replaced_by_the_weights_of_a_rank_without_them(
    root: int, moves: str, now: float, status: str
) -> None:
    owner: Records = [SketchedTensors(0, (SketchedTensor(None, "weight", (4, 2)),))]
    for nth in range(1, 6):
        begun = 1.0 + now * nth
        values = {
            "before": ((begun, 2.0),),
            "after": ((begun + 1.0, 2.0),),
            "own": ((1.0, 0.0),),
            "used": ((1.0, 0.0),),
        }
        owner += [
            step(nth),
            SketchedStep(0, nth, at=AT, **values),
            all_reduce(4, 2, op="broadcast", root=root, moves=moves),
        ]
    result = params_in_sync.judge(case({0: owner, 1: [GROUP]}))

    assert (result.status, result.ranks) == (status, (0,) if status == FAILED else ())


@pytest.mark.parametrize(
    ("steps", "exchanges", "sizes", "status"),
    [
        ((20, 18), (60, 60), (4, 5), "warned"),
        ((20, 20), (60, 60), (4, 4), "not-applicable"),
        ((20, 10), (60, 60), (4, 4), "warned"),  # each by the overflow of its shard
        ((20, 10), (60, 60), (4, 5), "not-applicable"),  # ranks have different parts in the training
        ((20, 18), (60, 54), (4, 4), "not-applicable"),  # a rank also exchanged less
        ((20, 18, 0), (60, 60, 60), (4, 4, 4), "warned"),  # one skips all of its steps
        ((20, 18, 0), (30, 30, 30), (4, 4, 4), "not-applicable"),  # it may only give the samples
        ((20, 20, 0), (60, 60, 60), (4, 4, 4), "not-applicable"),  # a server
        (
            (20, 18, -1),
            (60, 60, 60),
            (4, 4, 4),
            "not-applicable",
        ),  # a server of clients that make several steps in a row
    ],
)
def test_ranks_with_parts_skip_a_step_together(
    steps: tuple[int, ...], exchanges: tuple[int, ...], sizes: tuple[int, ...], status: str
) -> None:
    def rank(number: int) -> list[Record]:
        if steps[number] <= 0:
            return [ScriptEnd(None, 0, exchanges[number])]
        hashed = [TensorHashes(0, nth, 0, (f"{nth} of {number}",)) for nth in range(3)]
        passes = [each for nth in range(3) for each in (hashed[nth], all_reduce(40, 2), step(nth + 1))]
        passes += [step(4), step(5), all_reduce(40, 2)] if -1 in steps else []
        tensors = SketchedTensors(0, (SketchedTensor(None, "part", (sizes[number],)),))
        return [table("part", model=None), tensors, *passes, ScriptEnd(None, steps[number], exchanges[number])]

    result = params_in_sync.judge(case({number: rank(number) for number in range(len(steps))}))

    skipping = tuple(number for number, count in enumerate(steps) if count < 20)
    assert (result.status, result.ranks) == (status, skipping if status == "warned" else ())


@pytest.mark.parametrize(
    ("hashes", "loaded", "replicated", "fails"),
    [
        (("a", "b"), True, False, True),
        (("a", "b"), False, True, True),
        (("a", "b"), False, False, False),  # drawn from two generators, element by element
        (("a", "a"), True, True, False),
    ],
)
def test_a_model_that_ranks_do_not_hold_alike_is_not_divided(
    hashes: tuple[str, str], loaded: bool, replicated: bool, fails: bool
) -> None:
    def of(rank: int) -> WeightsBeforeSharding:
        return WeightsBeforeSharding((0, 1), ("head.weight",), (hashes[rank],), loaded and not rank, replicated, AT)

    found = divided_apart(case({rank: [of(rank)] for rank in range(2)}))

    assert (found is not None and found.status == "failed") is fails


@pytest.mark.parametrize(
    ("pairs", "shape", "status"),
    [
        (("0>1", "2>3"), (4,), WARNED),
        (("0>1", "2>3", "1>2"), (4,), NOT_APPLICABLE),
        (("0>1", "2>3"), (1000,), NOT_APPLICABLE),  # an all-reduce connects them
    ],
)
def test_groups_that_never_exchange_weights_are_warned_of(
    pairs: tuple[str, ...], shape: tuple[int, ...], status: str
) -> None:
    def records(rank: int) -> Records:
        waits = tuple(Wait("isend", 0, 10, pair, 2, 1) for pair in pairs if str(rank) in pair)
        notes: Records = [GROUP, UntrackedWait("isend"), table("weight", model=None)]
        notes += [SketchedTensors(0, (SketchedTensor(None, "weight", (4, 2)),)), state(0, "a"), step(1)]
        values = {"own": ((1.0, 2.0),), "used": ((1.0, 2.0),), "before": ((3.0, 4.0),), "after": ((float(rank), 4.0),)}
        notes += [SketchedStep(0, 1, at=AT, **values), StepTimes(1, 0.0, (), waits)]
        group = tuple(range(4))
        return [*notes, replace(all_reduce(*shape), group=group), state(1, f"b{rank}"), step(2)]

    assert params_in_sync.judge(case({rank: records(rank) for rank in range(4)})).status == status


@pytest.mark.parametrize(
    ("end", "others", "status"),
    [
        ([FileUse("write", "last.pt", at=AT)], [], WARNED),
        ([], [], PASSED),  # nothing is saved
        ([FileUse("write", "last.pt", at=AT)], [FileUse("write", "rank1.pt")], PASSED),  # each rank saves its own
        ([FileUse("write", "log.txt", at=AT)], [], PASSED),
        ([FileUse("read", "best.pt"), FileUse("write", "best.pt", at=AT)], [], PASSED),  # loaded again before
        ([all_reduce(4, 2), FileUse("write", "last.pt", at=AT)], [all_reduce(4, 2)], PASSED),  # averaged at last
        ([all_reduce(99), FileUse("write", "last.pt", at=AT)], [all_reduce(99)], PASSED),  # as one tensor
    ],
)
def test_steps_since_the_last_average_are_not_saved(end: Records, others: Records, status: str) -> None:
    def rank(number: int) -> Records:
        return [ddp(), *training("a", "be"[number], "c", "df"[number])]

    evaluated = [EvaluatedModel("Net", 4, (), (), True, True, at=AT)]
    result = params_in_sync.judge(case({0: [*rank(0), *end, *evaluated], 1: [*rank(1), *others, *evaluated]}))

    assert (result.status, at(result)) == (status, AT if status == WARNED else None)
    assert params_in_sync.judge(case({0: [*rank(0), *end], 1: [*rank(1), *others]})).status == PASSED
