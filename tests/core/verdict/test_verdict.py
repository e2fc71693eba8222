"""The verdict: the first failure is the cause, not the ranks that failed because of it."""

from __future__ import annotations

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import Failure
from compose_sim.core.verdict.root_cause import first_cause
from compose_sim.core.verdict.verdict import StopReason, find_deadlock, is_over, judge, reason_to_stop
from tests.builders import a_plan, an_event

PLAN = a_plan(nodes=3)


def started() -> list[Event]:
    """Return a run of three nodes with running ranks."""
    events = [an_event("started", 0.0)]
    for rank in range(3):
        events += [
            an_event("node-started", 1.0, node=f"node-{rank}"),
            an_event("rendezvous", 2.0, node=f"node-{rank}", world_size=3),
            an_event("rank-started", 3.0, rank=rank),
        ]
    return events


def ended(codes: dict[int, int], t: float = 9.0) -> list[Event]:
    """Return the engine's report on each node."""
    return [an_event("node-stopped", t, node=f"node-{number}", exit_code=code) for number, code in codes.items()]


def test_all_nodes_ending_with_0_is_passed() -> None:
    state = fold_all(PLAN, started() + ended({0: 0, 1: 0, 2: 0}))

    assert is_over(state)
    assert judge(state).word == "passed"
    assert judge(state).exit_code == 0


def test_the_first_exception_is_the_cause() -> None:
    """The 'connection closed' of other ranks is a consequence, even if it was written first."""
    events = started() + [
        an_event("exception", 5.00, rank=0, type="RuntimeError", message="Connection closed by peer [10.0.0.3]:5"),
        an_event("rank-exited", 5.01, rank=0, exit_code=1),
        an_event("exception", 5.02, rank=2, type="ValueError", message="bad batch", traceback="Traceback…"),
        an_event("rank-exited", 5.03, rank=2, exit_code=1),
        *ended({0: 1, 1: 143, 2: 1}),
    ]
    verdict = judge(fold_all(PLAN, events))

    assert verdict.word == "failed"
    assert verdict.cause is not None
    assert (verdict.cause.rank, verdict.cause.kind, verdict.cause.message) == (2, "exception", "ValueError: bad batch")
    assert verdict.cause.traceback == "Traceback…"


@pytest.mark.parametrize("end", [{"exit_code": 1}, {"signal": 15}], ids=["exits", "is killed"])
@pytest.mark.parametrize("message", ["Connection closed by peer [10.0.0.3]:5", "gloo: no error"])
def test_an_exception_is_the_cause_although_the_rank_is_stopped(message: str, end: dict[str, int]) -> None:
    """A rank that raised first may still be exiting when the others have failed without it."""
    events = started() + [
        an_event("exception", 5.00, rank=2, type="ValueError", message="bad batch"),
        an_event("exception", 5.01, rank=0, type="RuntimeError", message=message),
        an_event("rank-exited", 5.02, rank=0, exit_code=1),
        an_event("rank-exited", 7.03, rank=2, stopped=True, **end),
        *ended({0: 1, 1: 143, 2: 143}),
    ]
    cause = first_cause(fold_all(PLAN, events))

    assert cause is not None
    assert (cause.rank, cause.kind, cause.message) == (2, "exception", "ValueError: bad batch")


@pytest.mark.parametrize(
    ("signal", "traceback", "cause_is"),
    [
        (6, "ValueError: bad batch", (2, "exception")),
        (6, "RuntimeError: Connection closed by peer\nValueError: bad batch", (0, "signal")),
        (11, "ValueError: bad batch", (0, "signal")),
    ],
)
def test_an_exception_comes_before_the_abort_of_a_peer(signal: int, traceback: str, cause_is: tuple[int, str]) -> None:
    """Paddle and NCCL abort the peers of a rank that closes its connections, before it has exited; they do not crash otherwise."""
    events = started() + [
        an_event("exception", 5.00, rank=2, type="ValueError", message="bad batch", traceback=traceback),
        an_event("rank-exited", 5.4, rank=0, signal=signal),
        an_event("rank-exited", 5.5, rank=2, stopped=True, exit_code=1),
        *ended({0: 128 + signal, 1: 143, 2: 143}),
    ]
    cause = first_cause(fold_all(PLAN, events))

    assert cause is not None
    assert (cause.rank, cause.kind) == cause_is


def test_an_exception_of_a_stopped_rank_is_no_cause() -> None:
    """It may come from being stopped."""
    events = started() + [
        an_event("exception", 5.00, rank=0, type="ValueError", message="bad batch"),
        an_event("rank-exited", 5.01, rank=0, exit_code=1),
        an_event("exception", 5.02, rank=2, type="RuntimeError", message="interrupted"),
        an_event("rank-exited", 5.03, rank=2, stopped=True, exit_code=1),
        *ended({0: 1, 1: 143, 2: 143}),
    ]
    cause = first_cause(fold_all(PLAN, events))

    assert cause is not None
    assert (cause.rank, cause.message) == (0, "ValueError: bad batch")


def test_a_crash_after_the_script_ended_is_named_teardown() -> None:
    events = started() + [
        an_event("script-ended", 5.0, rank=1, exit_code=0),
        an_event("rank-exited", 5.1, rank=1, exit_code=None, signal=6),
        *ended({0: 0, 1: 134, 2: 0}),
    ]
    cause = first_cause(fold_all(PLAN, events))

    assert cause is not None
    assert cause.kind == "teardown"
    assert cause.message == "rank 1 crashed in teardown, after training ended (SIGABRT)"


def test_a_rank_out_of_memory_is_named() -> None:
    events = [*started(), an_event("rank-exited", 5.0, rank=1, signal=9, oom=True), *ended({0: 143, 1: 137, 2: 143})]
    cause = first_cause(fold_all(PLAN, events))

    assert cause is not None
    assert (cause.kind, cause.rank) == ("oom", 1)


def test_a_rank_killed_before_its_node_ran_out_of_memory_is_named() -> None:
    stopped = an_event("node-stopped", 9.0, node="node-1", exit_code=137, oom=True)
    events = [*started(), an_event("rank-exited", 5.0, rank=1, signal=9), *ended({0: 143, 2: 143}), stopped]
    cause = first_cause(fold_all(PLAN, events))

    assert cause is not None
    assert (cause.kind, cause.rank) == ("oom", 1)


def test_a_killed_node_is_the_cause() -> None:
    events = [
        *started(),
        Event(t=5.0, kind="node-lost", node="master", data={"node": "node-1", "reason": "its connection ended"}),
        *ended({0: 143, 1: 137, 2: 143}),
    ]
    verdict = judge(fold_all(PLAN, events))

    assert verdict.cause is not None
    assert (verdict.cause.node, verdict.cause.message) == ("node-1", "node-1 was killed (SIGKILL)")


def test_a_node_that_never_came_up_is_a_failed_start_with_its_last_words() -> None:
    events = [an_event("started", 0.0), *ended({0: 143, 1: 127, 2: 143})]
    cause = first_cause(fold_all(PLAN, events), {"node-1": "exec: python3: not found"})

    assert cause is not None
    assert cause.kind == "start"
    assert cause.message == "node-1 exited with status 127 before its ranks started"
    assert "python3: not found" in cause.traceback


def test_the_last_words_of_a_node_are_shown_also_if_the_others_were_stopped_for_want_of_it() -> None:
    stop = an_event("stopping", 65.0, node="node-1", reason="failure", cause="start", message="2 nodes left")
    state = fold_all(PLAN, [an_event("started", 0.0), stop, *ended({0: 143, 1: 1, 2: 143})])

    cause = judge(state, {"node-1": "no process ids"}).cause

    assert cause is not None
    assert (cause.message, cause.traceback) == ("2 nodes left", "no process ids")


def test_a_rank_stopped_because_of_others_is_no_failure() -> None:
    events = [*started(), an_event("rank-exited", 5.0, rank=0, signal=15, stopped=True)]

    assert fold_all(PLAN, events).failures == ()


def test_a_failure_that_a_restart_healed_does_not_fail_the_run() -> None:
    events = [*started(), an_event("rank-exited", 5.0, rank=0, exit_code=1), *ended({0: 0, 1: 0, 2: 0})]

    assert judge(fold_all(PLAN, events)).word == "passed"


def test_a_rank_gone_before_the_others_meet_is_a_deadlock() -> None:
    """The others wait in init_process_group for one that has ended; no timeout is needed to detect that."""
    events = started() + [
        an_event("init", 4.0, rank=0, phase="started"),
        an_event("rank-exited", 5.0, rank=1, exit_code=0),
    ]
    state = fold_all(PLAN, events)
    deadlock = find_deadlock(state)

    assert deadlock is not None
    assert deadlock.message == "rank 1 exited without calling init_process_group, where rank 0 waits for it"
    assert reason_to_stop(state, PLAN, now=5.0) == StopReason(reason="hang", cause=deadlock)


def test_a_rank_that_speaks_before_its_agent_is_heard() -> None:
    """The agent reports the start of a rank a moment after the rank itself may have begun to wait."""
    events = [an_event("init", 2.9, rank=0, phase="started"), an_event("rank-started", 3.0, rank=0)]

    assert fold_all(PLAN, events).ranks[0].in_init


def test_the_timeout_stops_the_run() -> None:
    plan = a_plan(nodes=3, timeout="10s")
    state = fold_all(plan, started())

    stop = reason_to_stop(state, plan, now=10.1)

    assert reason_to_stop(state, plan, now=9.9) is None
    assert stop is not None
    assert stop.cause is not None
    assert stop.cause.message == "not done after 10.0 s: node-0, node-1, node-2: starting"


def test_the_cause_of_a_stop_is_kept_from_the_moment_of_the_decision() -> None:
    """Once everything has been stopped, it is unknown who waited for whom."""
    stop = Event(
        t=5.0,
        kind="stopping",
        node="node-1",
        rank=1,
        data={"reason": "hang", "cause": "hang", "message": "rank 1 ended"},
    )
    verdict = judge(fold_all(PLAN, [*started(), stop, *ended({0: 143, 1: 0, 2: 143})]))

    assert verdict.exit_code == 124
    assert verdict.cause is not None
    assert (verdict.cause.rank, verdict.cause.message) == (1, "rank 1 ended")


def test_a_failure_of_an_earlier_round_does_not_stop_the_next() -> None:
    plan = a_plan(nodes=3, max_restarts=1)
    again = [an_event("rendezvous", 7.0, node=f"node-{number}", world_size=3, restart_count=1) for number in range(3)]
    state = fold_all(plan, [*started(), an_event("rank-exited", 5.0, rank=0, exit_code=1), *again])

    assert reason_to_stop(state, plan, now=60.0) is None


def test_nodes_do_not_wait_for_a_master_that_has_died() -> None:
    state = fold_all(PLAN, [an_event("started", 0.0), an_event("node-stopped", 1.0, node="master", exit_code=137)])
    stop = reason_to_stop(state, PLAN, now=6.5)

    assert reason_to_stop(state, PLAN, now=5.5) is None
    assert stop is not None
    assert stop.cause is not None
    assert stop.cause.message == "the master exited with status 137 while nodes still needed it"


def test_interrupted_is_said_plainly() -> None:
    events = [*started(), an_event("stopping", 5.0, reason="interrupted"), *ended({0: 143, 1: 143, 2: 143})]

    assert judge(fold_all(PLAN, events)).exit_code == 130


def test_an_engine_that_went_away_is_inconclusive() -> None:
    events = [*started(), an_event("stopping", 5.0, reason="engine")]

    assert judge(fold_all(PLAN, events)).exit_code == 3


def test_a_run_whose_composesim_was_killed_says_so() -> None:
    verdict = judge(fold_all(PLAN, started()))

    assert verdict.exit_code == 3
    assert verdict.cause
    assert verdict.cause.message.startswith("composesim was killed")


def test_a_smaller_group_waits_for_nobody_who_has_left() -> None:
    """Two of three ranks may create a group."""
    waiting = [
        Event(
            t=4.0, kind="init", node=f"node-{rank}", rank=rank, generation=0, data={"phase": "started", "world_size": 2}
        )
        for rank in (0, 1)
    ]
    gone = an_event("rank-exited", 5.0, rank=2, exit_code=0)

    assert find_deadlock(fold_all(PLAN, [*started(), *waiting, gone])) is None


def test_where_nobody_else_failed_the_master_is_the_cause() -> None:
    events = [*started(), an_event("node-stopped", 4.0, node="master", exit_code=137), *ended({0: 143, 1: 143, 2: 143})]
    cause = judge(fold_all(PLAN, events)).cause

    assert cause is not None
    assert cause.message == "the master exited with status 137 while nodes still needed it"


def test_nodes_that_are_done_may_end_long_after_the_master() -> None:
    said = Event(t=5.0, kind="ended", node="master", data={"passed": True, "reason": "all nodes are done"})
    gone = an_event("node-stopped", 6.0, node="master", exit_code=0)
    state = fold_all(PLAN, [*started(), said, gone, *ended({0: 0}, t=20.0), *ended({1: 0}, t=45.0)])

    assert reason_to_stop(state, PLAN, now=70.0) is None
    assert reason_to_stop(state, PLAN, now=80.0) is not None


def test_what_the_master_said_last_is_quoted() -> None:
    said = Event(t=1.0, kind="ended", node="master", data={"passed": False, "reason": "port 29777 is taken"})
    cause = judge(fold_all(PLAN, [*started(), said, *ended({0: 143, 1: 143, 2: 143})])).cause

    assert cause is not None
    assert cause.message == "port 29777 is taken"


def test_a_silent_node_is_not_explained_by_how_we_stopped_it() -> None:
    lost = Event(t=5.0, kind="node-lost", node="master", data={"node": "node-1", "reason": "no sign of life for 5 s"})
    cause = first_cause(fold_all(PLAN, [*started(), lost, *ended({0: 143, 1: 143, 2: 143})]))

    assert cause is not None
    assert cause.message == "node-1 was lost: no sign of life for 5 s"


def lost_and_stopped(reason: str) -> Failure | None:
    lost = Event(t=5.0, kind="node-lost", node="master", data={"node": "node-1", "reason": reason})
    stopping = an_event("stopping", 8.0, reason="failure")
    return first_cause(fold_all(PLAN, [*started(), lost, stopping, *ended({0: 143, 1: 137, 2: 137})]))


def test_composesim_says_that_it_stopped_a_silent_node() -> None:
    """The SIGKILL of composesim itself is not the cause of any node's end."""
    cause = lost_and_stopped("no sign of life for 30 s")

    assert cause is not None
    assert (cause.node, cause.message) == ("node-1", "composesim stopped node-1: no sign of life for 30 s")


def test_a_node_that_was_killed_before_the_others_were_stopped_was_killed() -> None:
    cause = lost_and_stopped("connection closed")

    assert cause is not None
    assert cause.message == "node-1 was killed (SIGKILL)"


def test_a_node_that_only_composesim_killed_is_no_cause() -> None:
    """The master ended the run, and a node did not end in time."""
    said = Event(t=5.0, kind="ended", node="master", data={"passed": False, "reason": "rank 0 on node-0 failed"})
    stopping = an_event("stopping", 11.0, reason="failure")
    cause = first_cause(fold_all(PLAN, [*started(), said, stopping, *ended({0: 143, 1: 137, 2: 143}, t=12.0)]))

    assert cause is not None
    assert cause.message == "rank 0 on node-0 failed"


def test_a_rank_that_left_in_good_order_is_the_cause_of_what_its_peers_died_of() -> None:
    events = [
        *started(),
        an_event("init", 4.0, rank=1, phase="done"),
        an_event("rank-exited", 5.0, rank=1, exit_code=0),
        an_event("exception", 5.1, rank=0, type="RuntimeError", message="Connection closed by peer"),
        an_event("rank-exited", 5.2, rank=0, exit_code=1),
        *ended({0: 1, 1: 143, 2: 143}),
    ]
    cause = first_cause(fold_all(PLAN, events))

    assert cause is not None
    assert (cause.rank, cause.message) == (1, "rank 1 exited with status 0 while other ranks still needed it")
