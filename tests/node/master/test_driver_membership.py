"""Who is there for a driver, told by events alone."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.node.master.driver_membership import Gathering, StartDriver, Tell
from compose_sim.node.shared.decisions import Act, Drop, Note, Send
from compose_sim.node.shared.master_protocol import SILENCE_SECONDS


def a_gathering(**changes: Any) -> Gathering:
    """Three planned nodes of one, two and one ranks, and a driver that accepts nodes."""
    gathering = Gathering(**{"slots": [1, 2, 1], "host": "master", "head_port": 6379, **changes})
    gathering.begin()
    gathering.driver_said({"type": "accepting"})
    return gathering


def join(gathering: Gathering, peer: int, number: int, now: float = 0.0) -> list[Act]:
    """Node `number` connects as `peer`, and joins."""
    gathering.connected(peer, f"10.0.0.{number}", now)
    return gathering.received(
        peer, {"type": "join", "node": f"node-{number}", "node_rank": number, "nproc": [1, 2, 1][number]}, now
    )


def rounds(acts: list[Act]) -> list[tuple[int, int]]:
    """(peer, first rank) of each node that was told to start."""
    return [
        (act.peer, act.message["first_rank"])
        for act in acts
        if isinstance(act, Send) and act.message["type"] == "round"
    ]


def told(acts: list[Act]) -> list[list[str]]:
    """The nodes that the driver was told of, each time."""
    return [[node["node"] for node in act.message["nodes"]] for act in acts if isinstance(act, Tell)]


def notes(acts: list[Act]) -> list[str]:
    """Kinds of what was written down."""
    return [act.kind for act in acts if isinstance(act, Note)]


def test_the_driver_is_started_first() -> None:
    assert Gathering(slots=[1], host="master", head_port=1).begin() == [StartDriver()]


def test_nodes_wait_until_the_driver_accepts_them() -> None:
    gathering = Gathering(slots=[1, 2, 1], host="master", head_port=6379)
    gathering.begin()

    early = join(gathering, 5, 1)
    accepted = gathering.driver_said({"type": "accepting"})

    assert (rounds(early), told(early)) == ([], [])
    assert (rounds(accepted), told(accepted)) == ([(5, 1)], [["node-1"]])


def test_ranks_are_those_planned_whoever_comes_first() -> None:
    gathering = a_gathering()

    assert rounds(join(gathering, 7, 2)) == [(7, 3)]
    acts = join(gathering, 8, 0)

    assert rounds(acts) == [(8, 0)]
    assert told(acts) == [["node-0", "node-2"]]
    present = next(act for act in acts if isinstance(act, Tell)).message["nodes"]
    assert present[1] == {"node": "node-2", "address": "10.0.0.2", "slots": 1}
    round_ = next(act for act in acts if isinstance(act, Send)).message
    assert (round_["world_size"], round_["nproc"]) == (4, [1, 2, 1])
    assert (round_["store_host"], round_["store_port"]) == ("master", 6379)


def test_a_lost_node_is_told_and_ends_nothing() -> None:
    gathering = a_gathering()
    join(gathering, 1, 0)
    join(gathering, 2, 1)

    acts = gathering.gone(2, "connection closed", 3.0)

    assert (notes(acts), told(acts)) == (["node-lost"], [["node-0"]])
    assert gathering.outcome is None


def test_a_node_that_comes_back_before_its_loss_was_seen_takes_its_place() -> None:
    gathering = a_gathering()
    join(gathering, 1, 0)

    acts = join(gathering, 9, 0, now=1.0)

    assert Drop(1) in acts
    assert rounds(acts) == [(9, 0)]
    assert told(acts) == [[], ["node-0"]]


def test_silence_is_a_loss_and_a_marked_one_was_wanted() -> None:
    absent: set[str] = set()
    gathering = a_gathering(absent=lambda: frozenset(absent))
    join(gathering, 1, 0, now=0.0)
    join(gathering, 2, 1, now=0.0)
    absent.add("node-1")
    gathering.tick(1.0)
    absent.clear()
    gathering.received(1, {"type": "beat"}, 6.0)

    acts = gathering.tick(6.1)

    lost = next(act for act in acts if isinstance(act, Note))
    assert (lost.data["node"], lost.data["injected"]) == ("node-1", True)
    assert Drop(2) in acts
    assert Drop(1) not in acts


@pytest.mark.parametrize("message", [{"type": "failed", "exit_code": 3}, {"type": "done"}])
def test_a_node_whose_process_ends_is_stopped_and_counts_as_gone(message: dict[str, Any]) -> None:
    gathering = a_gathering()
    join(gathering, 1, 0)
    join(gathering, 2, 1)

    acts = gathering.received(2, message, 2.0)

    assert told(acts) == [["node-0"]]
    stop = next(act for act in acts if isinstance(act, Send))
    assert (stop.peer, stop.message["type"]) == (2, "stop")
    assert told(gathering.gone(2, "connection closed", 2.1)) == [], "it was told already"


@pytest.mark.parametrize(
    ("code", "outcome", "word", "reason"),
    [
        (0, True, "end", "the driver ended with exit code 0"),
        (3, False, "stop", "the driver ended with exit code 3"),
        (-9, False, "stop", "the driver was ended by signal 9"),
    ],
)
def test_the_drivers_end_is_the_runs(code: int, outcome: bool, word: str, reason: str) -> None:
    gathering = a_gathering()
    join(gathering, 1, 0)

    acts = gathering.driver_ended(code)

    ended = next(act for act in acts if isinstance(act, Note))
    assert (ended.kind, ended.data["passed"], ended.data["reason"]) == ("ended", outcome, reason)
    assert [act.message["type"] for act in acts if isinstance(act, Send)] == [word]
    assert not gathering.finished
    late = join(gathering, 2, 1)
    assert [act.message["type"] for act in late if isinstance(act, Send)] == [word], (
        "one that comes late is told as well"
    )
    gathering.gone(1, "connection closed", 1.0)
    gathering.gone(2, "connection closed", 1.0)
    assert gathering.finished


def test_a_driver_that_ends_before_it_accepts_nodes_leaves_none_that_asks_in_vain() -> None:
    """They are still on their way, and are told; those that have not come after a while are not waited for."""
    gathering = Gathering(slots=[1, 2], host="master", head_port=6379)
    gathering.begin()
    gathering.driver_ended(90)
    gathering.tick(1.0)
    finished = [gathering.finished]

    (told,) = join(gathering, 1, 0, now=1.5)
    gathering.gone(1, "connection closed", 1.6)
    finished.append(gathering.finished)
    gathering.tick(1.0 + 2 * SILENCE_SECONDS)
    finished.append(gathering.finished)

    assert isinstance(told, Send)
    assert told.message["type"] == "stop"
    assert finished == [False, False, True]


def test_ready_is_written_down_with_what_the_framework_says() -> None:
    acts = a_gathering().driver_said({"type": "ready", "words": "3 nodes", "cpus": 6})

    assert acts == [Note("ready", {"words": "3 nodes", "cpus": 6})]


def test_a_node_that_was_never_planned_is_not_taken_in() -> None:
    """Whoever holds its connection takes it for a stranger's, and closes it (nodes.py)."""
    gathering = a_gathering()
    gathering.connected(3, "10.0.0.7", 0.0)

    with pytest.raises(ValueError, match="node number 99 was never planned"):
        gathering.received(3, {"type": "join", "node": "node-99", "node_rank": 99, "nproc": 1}, 0.0)

    assert told(join(gathering, 4, 0)) != []
