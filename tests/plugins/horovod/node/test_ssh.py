"""Assign the ranks of a node to ssh sessions, without sockets or processes."""

from __future__ import annotations

from compose_sim.plugins.horovod.node.ssh import (
    AnswerSession,
    ForkRank,
    ReportExit,
    SshSessions,
    StopRank,
    rank_variables,
)

RANKS = [{"RANK": "2", "LOCAL_RANK": "0"}, {"RANK": "3", "LOCAL_RANK": "1"}]
FIRST, SECOND = 10, 11  # sessions


def asks(local_rank: int, **more: str) -> dict[str, str]:
    """Return the environment of a session that requests this rank."""
    return {"HOROVOD_LOCAL_RANK": str(local_rank), "HOROVOD_SIZE": "4", "HOME": "/root", **more}


def test_a_session_gets_its_rank_and_the_exit_status() -> None:
    sessions = SshSessions()
    assert sessions.start_round(RANKS) == []

    (fork,) = sessions.request(FIRST, asks(1))

    assert isinstance(fork, ForkRank)
    assert fork.slot == 1
    assert fork.variables == {
        **{"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"},
        **{"HOROVOD_LOCAL_RANK": "1", "HOROVOD_SIZE": "4"},
    }
    assert sessions.rank_ended(1, -9) == [ReportExit(1, -9, stopped=False), AnswerSession(FIRST, -9)]


def test_a_session_that_comes_before_the_round_waits_for_it() -> None:
    sessions = SshSessions()

    assert sessions.request(FIRST, asks(0)) == []
    assert [type(act) for act in sessions.start_round(RANKS)] == [ForkRank]


def test_a_rank_is_stopped_with_its_session_which_is_no_failure() -> None:
    sessions = SshSessions()
    sessions.start_round(RANKS)
    sessions.request(FIRST, asks(0))

    assert sessions.left(FIRST) == [StopRank(0)]
    assert sessions.rank_ended(0, -15) == [ReportExit(0, -15, stopped=True)]


def test_the_next_session_gets_the_slot_when_the_last_rank_has_ended() -> None:
    """A launcher that restarts does not wait for the ranks that it stopped."""
    sessions = SshSessions()
    sessions.start_round(RANKS)
    sessions.request(FIRST, asks(0))
    sessions.left(FIRST)

    assert sessions.request(SECOND, asks(0)) == []
    assert [type(act) for act in sessions.rank_ended(0, -15)] == [ReportExit, ForkRank]
    assert sessions.rank_ended(0, 0) == [ReportExit(0, 0, stopped=False), AnswerSession(SECOND, 0)]


def test_a_slot_that_is_taken_or_missing_is_refused() -> None:
    sessions = SshSessions()
    sessions.start_round(RANKS)
    sessions.request(FIRST, asks(0))

    assert sessions.request(SECOND, asks(0)) == [
        AnswerSession(SECOND, 1, "local rank 0 of this node is already running")
    ]
    assert sessions.request(SECOND, asks(2)) == [
        AnswerSession(SECOND, 1, "local rank 2 does not exist: this node has 2")
    ]
    assert sessions.request(SECOND, {}) == [AnswerSession(SECOND, 1, "local rank None does not exist: this node has 2")]


def test_mpirun_has_other_variables() -> None:
    variables = rank_variables(
        {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PATH": "/bin", "PMIX_RANK": "1"}
    )

    assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"], variables["PMIX_RANK"]) == ("8", "2", "1")
    assert "PATH" not in variables
