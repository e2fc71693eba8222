"""The nodes that a driver hears of, and when the run ends, without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.node.master.coordinator import Action, Drop, Emit, Send
from compose_sim.node.master.driver_membership import LATE_SECONDS, DriverMembership, SendDriver, StartDriver


def a_membership(**changes: Any) -> DriverMembership:
    """Return a membership of three planned nodes with one, two and one ranks, and a driver that accepts nodes."""
    membership = DriverMembership(**{"slots": [1, 2, 1], "host": "master", "head_port": 6379, **changes})
    membership.begin()
    membership.driver_sent({"type": "accepting"})
    return membership


def join(membership: DriverMembership, peer: int, number: int, now: float = 0.0) -> list[Action]:
    """Let node `number` connect as `peer` and join."""
    membership.connected(peer, f"10.0.0.{number}", now)
    return membership.received(
        peer, {"type": "join", "node": f"node-{number}", "node_rank": number, "nproc": [1, 2, 1][number]}, now
    )


def rounds(actions: list[Action]) -> list[tuple[int, int]]:
    """Return (peer, first rank) of each node that starts ranks."""
    return [
        (action.peer, action.message["first_rank"])
        for action in actions
        if isinstance(action, Send) and action.message["type"] == "round"
    ]


def reported(actions: list[Action]) -> list[list[str]]:
    """Return the nodes in each message to the driver."""
    return [[node["node"] for node in action.message["nodes"]] for action in actions if isinstance(action, SendDriver)]


def emitted(actions: list[Action]) -> list[str]:
    """Return the kinds of the emitted events."""
    return [action.kind for action in actions if isinstance(action, Emit)]


def test_the_driver_is_started_first() -> None:
    assert DriverMembership(slots=[1], host="master", head_port=1).begin() == [StartDriver()]


def test_nodes_wait_until_the_driver_accepts_them() -> None:
    membership = DriverMembership(slots=[1, 2, 1], host="master", head_port=6379)
    membership.begin()

    early = join(membership, 5, 1)
    accepted = membership.driver_sent({"type": "accepting"})

    assert (rounds(early), reported(early)) == ([], [])
    assert (rounds(accepted), reported(accepted)) == ([(5, 1)], [["node-1"]])


def test_nodes_get_the_planned_ranks_in_any_order() -> None:
    membership = a_membership()

    assert rounds(join(membership, 7, 2)) == [(7, 3)]
    actions = join(membership, 8, 0)

    assert rounds(actions) == [(8, 0)]
    assert reported(actions) == [["node-0", "node-2"]]
    present = next(action for action in actions if isinstance(action, SendDriver)).message["nodes"]
    assert present[1] == {"node": "node-2", "address": "10.0.0.2", "slots": 1}
    round_ = next(action for action in actions if isinstance(action, Send)).message
    assert (round_["world_size"], round_["nproc"]) == (4, [1, 2, 1])
    assert (round_["store_host"], round_["store_port"]) == ("master", 6379)


def test_a_lost_node_is_reported_and_ends_nothing() -> None:
    membership = a_membership()
    join(membership, 1, 0)
    join(membership, 2, 1)

    actions = membership.gone(2, "connection closed")

    assert (emitted(actions), reported(actions)) == (["node-lost"], [["node-0"]])
    assert membership.outcome is None


def test_a_node_that_comes_back_before_its_loss_was_seen_takes_its_place() -> None:
    membership = a_membership()
    join(membership, 1, 0)

    actions = join(membership, 9, 0, now=1.0)

    assert Drop(1) in actions
    assert rounds(actions) == [(9, 0)]
    assert reported(actions) == [[], ["node-0"]]


def test_a_silent_node_is_lost_and_an_absent_one_on_purpose() -> None:
    absent: set[str] = set()
    membership = a_membership(absent=lambda: frozenset(absent))
    join(membership, 1, 0, now=0.0)
    join(membership, 2, 1, now=0.0)
    absent.add("node-1")
    membership.tick(1.0)
    absent.clear()
    membership.received(1, {"type": "heartbeat"}, 6.0)

    actions = membership.tick(6.1)

    lost = next(action for action in actions if isinstance(action, Emit))
    assert (lost.data["node"], lost.data["injected"]) == ("node-1", True)
    assert Drop(2) in actions
    assert Drop(1) not in actions


@pytest.mark.parametrize("message", [{"type": "failed", "exit_code": 3}, {"type": "done"}])
def test_a_node_whose_process_ends_is_stopped_and_counts_as_gone(message: dict[str, Any]) -> None:
    membership = a_membership()
    join(membership, 1, 0)
    join(membership, 2, 1)

    actions = membership.received(2, message, 2.0)

    assert reported(actions) == [["node-0"]]
    stop = next(action for action in actions if isinstance(action, Send))
    assert (stop.peer, stop.message["type"]) == (2, "stop")
    assert reported(membership.gone(2, "connection closed")) == [], "it was reported already"


@pytest.mark.parametrize(
    ("code", "outcome", "word", "reason"),
    [
        (0, True, "end", "the driver ended with exit code 0"),
        (3, False, "stop", "the driver ended with exit code 3"),
        (-9, False, "stop", "the driver was ended by signal 9"),
    ],
)
def test_the_run_ends_with_the_driver(code: int, outcome: bool, word: str, reason: str) -> None:
    membership = a_membership()
    join(membership, 1, 0)

    actions = membership.driver_ended(code)

    ended = next(action for action in actions if isinstance(action, Emit))
    assert (ended.kind, ended.data["passed"], ended.data["reason"]) == ("ended", outcome, reason)
    assert [action.message["type"] for action in actions if isinstance(action, Send)] == [word]
    assert not membership.finished
    late = join(membership, 2, 1)
    assert [action.message["type"] for action in late if isinstance(action, Send)] == [word], (
        "a late node is told as well"
    )
    membership.gone(1, "connection closed")
    membership.gone(2, "connection closed")
    assert membership.finished


def test_after_an_early_end_of_the_driver_late_nodes_hear_of_it() -> None:
    """Nodes that do not come for a while are not waited for."""
    membership = DriverMembership(slots=[1, 2], host="master", head_port=6379)
    membership.begin()
    membership.driver_ended(90)
    membership.tick(1.0)
    finished = [membership.finished]

    (answer,) = join(membership, 1, 0, now=1.5)
    membership.gone(1, "connection closed")
    finished.append(membership.finished)
    membership.tick(1.0 + 2 * LATE_SECONDS)
    finished.append(membership.finished)

    assert isinstance(answer, Send)
    assert answer.message["type"] == "stop"
    assert finished == [False, False, True]


def test_ready_is_emitted_with_the_facts_of_the_framework() -> None:
    actions = a_membership().driver_sent({"type": "ready", "words": "3 nodes", "cpus": 6})

    assert actions == [Emit("ready", {"words": "3 nodes", "cpus": 6})]


def test_a_node_that_was_never_planned_is_not_taken_in() -> None:
    """The server closes the connection (server.py)."""
    membership = a_membership()
    membership.connected(3, "10.0.0.7", 0.0)

    with pytest.raises(ValueError, match="node number 99 was never planned"):
        membership.received(3, {"type": "join", "node": "node-99", "node_rank": 99, "nproc": 1}, 0.0)

    assert reported(join(membership, 4, 0)) != []
