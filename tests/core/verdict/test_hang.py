"""When a run hangs, and which rank the others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.checks import Case
from compose_sim.core.checks.rules.progress import hang
from compose_sim.core.events.events import Event
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.report.report import Cause, Place
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import ClusterState
from compose_sim.core.verdict.hang import diagnose, find_hang, standings_of
from compose_sim.core.verdict.verdict import find_deadlock, reason_to_stop
from tests.builders import a_plan, an_event

PLAN = a_plan(nodes=3, hang_timeout="1m")
ALL_REDUCE = "all_reduce #7 (train.py, line 50)"


def running(ranks: int = 3) -> list[Event]:
    """Return ranks that have made steps."""
    events = [an_event("started", 0.0)]
    for rank in range(ranks):
        events += [
            an_event("rendezvous", 1.0, node=f"node-{rank}", world_size=ranks),
            an_event("rank-started", 1.0, rank=rank),
            an_event("step", 2.0, rank=rank, step=6),
        ]
    return events


def stalled(rank: int, t: float = 118.0, **data: Any) -> Event:
    """Return a rank that has made no progress since second 100."""
    told = {
        "since_s": t - 100.0,
        "doing": "locked",
        "steps": 6,
        "place": ["/home/ada/project/train.py", 40, "main", "x()"],
    }
    return an_event("stalled", t, rank=rank, **{**told, **data})


def waits(rank: int, what: str = ALL_REDUCE) -> Event:
    return stalled(rank, waiting_in=what)


def message_of(*events: Event) -> str:
    """Return the diagnosis when these ranks stand still like this."""
    found = find_hang(fold_all(PLAN, [*running(), *events]), PLAN, now=120.0)
    assert found is not None
    return found.message


def test_the_rank_that_is_not_in_the_collective_is_the_culprit() -> None:
    state = fold_all(PLAN, [*running(), waits(0), waits(1), stalled(2, doing="sleeping")])
    found = find_hang(state, PLAN, now=120.0)

    assert found is not None
    assert (found.t, found.kind, found.rank, found.node) == (100.0, "hang", 2, "node-2")
    assert found.message == (
        f"rank 2 on node-2 sleeps at train.py, line 40: `x()`, while ranks 0, 1 wait for it in {ALL_REDUCE}"
    )
    assert [line for line in found.traceback.splitlines() if line.startswith("rank")] == [
        f"rank 0 on node-0 waits in {ALL_REDUCE}",
        f"rank 1 on node-1 waits in {ALL_REDUCE}",
        "rank 2 on node-2 sleeps at train.py, line 40: `x()`",
    ]


@pytest.mark.parametrize(("fewer", "named"), [((1,), 1), ((), 0), ((0, 1), 0)])
def test_a_rank_that_has_left_out_a_step_is_named_where_all_wait_in_one_collective(
    fewer: tuple[int, ...], named: int
) -> None:
    events = [stalled(rank, waiting_in=ALL_REDUCE, steps=5 if rank in fewer else 6) for rank in range(3)]
    found = find_hang(fold_all(PLAN, [*running(), *events]), PLAN, now=120.0)

    assert found is not None
    assert found.rank == named
    assert ("rank 1 on node-1 has made 5 steps, other ranks 6" in found.message) == (fewer == (1,))


@pytest.mark.parametrize(("call", "other"), [("send", "receives"), ("recv", "sends")])
def test_ranks_that_all_send_or_all_receive_wait_for_each_other(call: str, other: str) -> None:
    found = diagnose(
        standings_of(fold_all(PLAN, [*running(), *(waits(rank, f"{call} (a.py, line 3)") for rank in range(3))]))
    )

    assert (found.kind, "batch_isend_irecv" in found.fix) == ("messages", True)
    assert found.message == f"ranks 0, 1, 2 wait in {call} (a.py, line 3), and no rank {other}"


def test_a_sender_and_a_receiver_are_no_such_pair() -> None:
    messages = [waits(0, "send (a.py, line 3)"), waits(1, "recv (a.py, line 4)"), waits(2, "send (a.py, line 3)")]

    assert diagnose(standings_of(fold_all(PLAN, [*running(), *messages]))).kind == "mismatch"


def test_while_one_rank_moves_nothing_hangs() -> None:
    events = [*running(), waits(0), waits(1), stalled(2)]
    assert find_hang(fold_all(PLAN, [*events, an_event("resumed", 119.0, rank=2)]), PLAN, now=120.0) is None
    assert find_hang(fold_all(PLAN, events[:-1]), PLAN, now=120.0) is None


def test_a_rank_at_a_breakpoint_is_waited_for() -> None:
    waiting = an_event("breakpoint", 99.0, rank=2, phase="waiting", file="train.py", line=3, socket="s")
    events = [*running(), waiting, waits(0), waits(1), stalled(2)]
    assert find_hang(fold_all(PLAN, events), PLAN, now=900.0) is None

    released = an_event("breakpoint", 119.0, rank=2, phase="released")
    assert find_hang(fold_all(PLAN, [*events, released]), PLAN, now=900.0) is not None


@pytest.mark.parametrize(
    ("last", "patience"),
    [
        pytest.param(stalled(2), 15.0, id="every rank has stepped"),
        pytest.param(stalled(2, steps=0, doing="waiting"), 60.0, id="one has not stepped yet"),
        pytest.param(
            stalled(2, steps=0, waiting_in="barrier #7 (train.py, line 9)"), 15.0, id="all wait, one for another reason"
        ),
        pytest.param(
            stalled(2, steps=0, waiting_in="all_reduce #7 (train.py, line 52)"), 60.0, id="all wait in the same"
        ),
        pytest.param(stalled(2, steps=0, doing="locked"), 15.0, id="one waits for a lock that nobody can release"),
        pytest.param(
            stalled(2, steps=0, doing="locked", threads=[["load.py", 3, "load", "x()"]]),
            60.0,
            id="a thread may release it",
        ),
    ],
)
def test_before_the_first_step_there_is_more_patience(last: Event, patience: float) -> None:
    state = fold_all(PLAN, [*running(), waits(0), waits(1), last])
    assert find_hang(state, PLAN, now=100.0 + patience - 0.1) is None
    assert find_hang(state, PLAN, now=100.0 + patience) is not None


def test_all_ranks_in_init_process_group_wait_for_nobody_else() -> None:
    ranks = (stalled(rank, steps=0, waiting_in="init_process_group (train.py, line 7)") for rank in range(3))
    assert find_hang(fold_all(PLAN, [*running(), *ranks]), PLAN, now=115.0) is not None


def test_ranks_that_all_sleep_may_wake() -> None:
    state = fold_all(PLAN, [*running(), *(stalled(rank, doing="sleeping") for rank in range(3))])
    assert find_hang(state, PLAN, now=130.0) is None
    found = find_hang(state, PLAN, now=160.0)
    assert found is not None
    assert (
        found.message
        == "no rank makes progress: rank 0 on node-0 sleeps at train.py, line 40: `x()` (ranks 1, 2 are there too)"
    )


def test_a_hang_stops_the_run_at_its_own_time_limit() -> None:
    state = fold_all(PLAN, [*running(), waits(0), waits(1), stalled(2)])
    assert reason_to_stop(state, PLAN, now=159.0) is None
    stop = reason_to_stop(state, PLAN, now=161.0)
    assert stop is not None
    assert stop.reason == "hang"
    assert reason_to_stop(state, a_plan(nodes=3, hang_timeout="never"), now=9999.0) is None


def test_a_short_time_limit_shortens_the_diagnosis() -> None:
    plan = a_plan(nodes=3, hang_timeout="4s")
    assert (plan.stall_s, plan.environment["COMPOSESIM_STALL_SECONDS"]) == (4.0, "4")
    assert (PLAN.stall_s, a_plan(hang_timeout="never").stall_s) == (15.0, 15.0)


def test_a_rank_that_has_left_is_the_culprit_where_all_others_wait() -> None:
    left = an_event("rank-exited", 99.0, rank=1, exit_code=0)
    state = fold_all(PLAN, [*running(), left, waits(0), waits(2)])
    found = find_hang(state, PLAN, now=120.0)

    assert found is not None
    assert found.rank == 1
    assert found.message.startswith("rank 1 on node-1 exited with status 0 after 6 steps, while ranks 0, 2 wait for it")


def test_ranks_may_go_on_that_waited_for_a_rank_that_has_just_left() -> None:
    left = an_event("rank-exited", 119.5, rank=1, exit_code=0)
    events = [*running(), waits(0), waits(2), left]
    assert find_hang(fold_all(PLAN, events), PLAN, now=120.0) is None
    found = find_hang(fold_all(PLAN, events), PLAN, now=119.5 + PLAN.stall_s)
    assert found is not None
    assert (found.rank, found.t) == (1, 119.5)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"doing": "stopped"}, "rank 2 on node-2 is stopped (SIGSTOP) at train.py, line 40"),
        (
            {"doing": "stopped", "waiting_in": ALL_REDUCE, "place": None},
            "is stopped (SIGSTOP) after step 6, while ranks",
        ),
        ({"locked_in_c": True}, "is in C code that holds the GIL at train.py, line 40"),
        (
            {"threads": [["/home/ada/project/log.py", 7, "write", "with a:"]]},
            "waits for a thread or a lock at train.py, line 40: `x()`, its other thread at log.py, line 7: `with a:`",
        ),
        (
            {
                "frames": [
                    ["/venv/torch/utils/data/dataloader.py", 1, "_get_data"],
                    ["/home/ada/project/train.py", 40, "main"],
                ],
                "workers": [
                    {"pid": 12, "doing": "sleeping", "place": ["/home/ada/project/data.py", 3, "get", "wait()"]}
                ],
            },
            "waits for its data loader at train.py, line 40: `x()`; its worker (pid 12) sleeps at data.py, line 3: `wait()`",
        ),
        (
            {
                "frames": [
                    ["/venv/torch/multiprocessing/spawn.py", 1, "join"],
                    ["/home/ada/project/train.py", 40, "main"],
                ]
            },
            "waits for a process that it has started at train.py, line 40: `x()`",
        ),
        (
            {"place": None, "frames": [["/usr/lib/python3.11/threading.py", 9, "_shutdown"]]},
            "waits for a thread to finish",
        ),
    ],
)
def test_each_kind_is_named(data: dict[str, Any], words: str) -> None:
    assert words in message_of(waits(0), waits(1), stalled(2, **data))


def test_ranks_that_spawn_their_own_are_told_of_the_launcher_for_it() -> None:
    frames = [["/venv/torch/multiprocessing/spawn.py", 1, "join"], ["/home/ada/project/train.py", 40, "main"]]
    state = fold_all(PLAN, [*running(), *(stalled(rank, frames=frames) for rank in range(3))])

    found = diagnose(standings_of(state))

    assert found.kind == "spawn"
    assert "--launcher env" in found.fix


def test_ranks_in_different_collectives_wait_for_one_another() -> None:
    assert message_of(waits(0, "barrier #3"), waits(1), waits(2)) == (
        f"rank 0 waits in barrier #3, while ranks 1, 2 wait in {ALL_REDUCE}: they wait for each other"
    )


def test_a_collective_that_nobody_told_is_seen_in_the_frames() -> None:
    frames = [
        ["/venv/torch/distributed/distributed_c10d.py", 1, "broadcast"],
        ["/home/ada/project/train.py", 40, "main"],
    ]
    assert "ranks 0, 1 wait for it in broadcast (train.py, line 40)" in message_of(
        stalled(0, frames=frames), stalled(1, frames=frames), stalled(2, doing="sleeping")
    )


def of_case(state: ClusterState, verdict: str, **changes: Any) -> Case:
    ranks = {rank: RankObserved(rank=rank, node=f"node-{rank}", local_rank=0) for rank in state.ranks}
    return Case(observed=Observed(ranks=ranks), verdict=verdict, stalls=standings_of(state), **changes)


def test_the_check_fails_with_the_message_of_the_run_and_a_fix() -> None:
    state = fold_all(PLAN, [*running(), waits(0), waits(1), stalled(2)])
    cause = Cause(kind="hang", message="the message", rank=2)
    result = hang.judge(of_case(state, "hung", cause=cause))
    assert (result.status, result.detail, result.ranks) == ("failed", "the message", (2,))
    assert result.place == Place(file="/home/ada/project/train.py", line=40)
    assert result.fix == diagnose(standings_of(state)).fix

    assert hang.judge(of_case(state, "timeout")).status == "failed"  # the time limit came first
    assert hang.judge(of_case(state, "interrupted")).status == "not-applicable"


def test_a_run_that_came_to_its_end_passes() -> None:
    ended = [an_event("rank-exited", 9.0, rank=rank, exit_code=0) for rank in range(3)]
    assert hang.judge(of_case(fold_all(PLAN, [*running(), *ended]), "passed")).status == "passed"


def test_a_rank_that_never_joined_is_told_without_a_fix_for_something_else() -> None:
    events = [
        *running(2),
        an_event("init", 3.0, rank=0, phase="started"),
        an_event("rank-exited", 4.0, rank=1, exit_code=0),
    ]
    plan = a_plan(nodes=2)
    deadlock = find_deadlock(fold_all(plan, events))
    assert deadlock is not None
    result = hang.judge(
        of_case(fold_all(plan, events), "hung", cause=Cause(kind="hang", message=deadlock.message, rank=1))
    )
    assert (result.status, result.ranks) == ("failed", (1,))
    assert "init_process_group" in result.fix


@pytest.mark.parametrize(
    ("other", "hang_timeout", "lasts"),
    [
        ("broadcast #7 (train.py, line 51)", None, 60.0),
        ("broadcast #7 (train.py, line 51)", "4m", 240.0),
        ("", None, 300.0),  # it may come
    ],
)
def test_ranks_that_wait_for_each_other_are_stopped_after_a_minute_unless_the_user_wants_to_wait(
    other: str, hang_timeout: str | None, lasts: float
) -> None:
    plan = a_plan(nodes=3, **({"hang_timeout": hang_timeout} if hang_timeout else {}))
    last = waits(2, other) if other else stalled(2, doing="sleeping")
    state = fold_all(plan, [*running(), waits(0), waits(1), last])

    assert reason_to_stop(state, plan, now=100.0 + lasts - 1) is None
    stop = reason_to_stop(state, plan, now=100.0 + lasts + 1)
    assert stop is not None
    assert stop.reason == "hang"
