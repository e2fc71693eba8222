"""Who gets a rank of a node that another launcher asks for ranks of: told by what happens, without sockets or processes."""

from __future__ import annotations

from compose_sim.node.frameworks.horovod.ssh_sessions import Answer, Fork, Guests, Report, Stop, told

RANKS = [{"RANK": "2", "LOCAL_RANK": "0"}, {"RANK": "3", "LOCAL_RANK": "1"}]
FIRST, SECOND = 10, 11  # sessions


def asks(local_rank: int, **more: str) -> dict[str, str]:
    """What a session tells of the rank that it wants."""
    return {"HOROVOD_LOCAL_RANK": str(local_rank), "HOROVOD_SIZE": "4", "HOME": "/root", **more}


def test_a_session_gets_its_rank_and_hears_how_it_ended() -> None:
    guests = Guests()
    assert guests.opened(RANKS) == []

    (fork,) = guests.asked(FIRST, asks(1))

    assert isinstance(fork, Fork)
    assert fork.place == 1
    assert fork.variables == {
        **{"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"},
        **{"HOROVOD_LOCAL_RANK": "1", "HOROVOD_SIZE": "4"},
    }
    assert guests.ended(1, -9) == [Report(1, -9, stopped=False), Answer(FIRST, -9)]


def test_a_session_that_comes_before_the_round_waits_for_it() -> None:
    guests = Guests()

    assert guests.asked(FIRST, asks(0)) == []
    assert [type(act) for act in guests.opened(RANKS)] == [Fork]


def test_the_end_of_a_session_is_the_end_of_its_rank_and_no_failure() -> None:
    guests = Guests()
    guests.opened(RANKS)
    guests.asked(FIRST, asks(0))

    assert guests.left(FIRST) == [Stop(0)]
    assert guests.ended(0, -15) == [Report(0, -15, stopped=True)]


def test_the_next_session_has_the_place_when_the_last_rank_has_ended() -> None:
    """A launcher that begins anew does not wait for what it ended."""
    guests = Guests()
    guests.opened(RANKS)
    guests.asked(FIRST, asks(0))
    guests.left(FIRST)

    assert guests.asked(SECOND, asks(0)) == []
    assert [type(act) for act in guests.ended(0, -15)] == [Report, Fork]
    assert guests.ended(0, 0) == [Report(0, 0, stopped=False), Answer(SECOND, 0)]


def test_a_place_that_is_taken_or_not_there_is_refused_in_words() -> None:
    guests = Guests()
    guests.opened(RANKS)
    guests.asked(FIRST, asks(0))

    assert guests.asked(SECOND, asks(0)) == [Answer(SECOND, 1, "local rank 0 of this node runs already")]
    assert guests.asked(SECOND, asks(2)) == [Answer(SECOND, 1, "it asked for local rank 2, and this node has 2")]
    assert guests.asked(SECOND, {}) == [Answer(SECOND, 1, "it asked for local rank None, and this node has 2")]


def test_mpirun_names_ranks_in_its_own_way() -> None:
    variables = told({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PATH": "/bin", "PMIX_RANK": "1"})

    assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"], variables["PMIX_RANK"]) == ("8", "2", "1")
    assert "PATH" not in variables
