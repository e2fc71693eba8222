"""The nodes of each round, without sockets and with a clock that the test controls."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.node.master.coordinator import Action, Drop, Emit, Send
from compose_sim.node.master.rendezvous import OpenStore, Rendezvous

FAILED = {"type": "failed", "rank": 0, "exit_code": 1, "signal": None}


class Marks(set[str]):
    """The nodes that a fault affects."""

    def __call__(self) -> frozenset[str]:
        return frozenset(self)


def begun(nodes: int, *, min_nodes: int | None = None, max_restarts: int = 0, marks: Marks | None = None) -> Rendezvous:
    rendezvous = Rendezvous(
        nodes=nodes, min_nodes=min_nodes, max_restarts=max_restarts, absent=Marks() if marks is None else marks
    )
    assert rendezvous.begin() == [OpenStore()]
    rendezvous.store_opened("master", 29500)
    return rendezvous


def training(nodes: int, *, min_nodes: int | None = 1, max_restarts: int = 0) -> tuple[Rendezvous, Marks]:
    """Return an elastic rendezvous in the first round, and the absent nodes that it reads."""
    marks = Marks()
    rendezvous = begun(nodes, min_nodes=min_nodes, max_restarts=max_restarts, marks=marks)
    assert sent(join(rendezvous, *range(nodes)), "round")
    return rendezvous, marks


def rejoin(rendezvous: Rendezvous, *numbers: int, now: float = 1.0) -> list[Action]:
    """Let nodes answer a call to rejoin; the next round's store is opened first."""
    rendezvous.store_opened("master", 29501)
    return join(rendezvous, *numbers, now=now, connect=False)


def join(rendezvous: Rendezvous, *numbers: int, now: float = 0.0, connect: bool = True) -> list[Action]:
    actions: list[Action] = []
    for number in numbers:
        if connect:
            rendezvous.connected(number, "10.0.0.9", now)
        message = {"type": "join", "node": f"node-{number}", "node_rank": number, "nproc": number + 1}
        actions += rendezvous.received(number, message, now)
    return actions


def sent(actions: list[Action], kind: str) -> dict[int, dict[str, Any]]:
    return {
        action.peer: action.message for action in actions if isinstance(action, Send) and action.message["type"] == kind
    }


def test_a_round_begins_when_all_nodes_are_there() -> None:
    rendezvous = begun(3)
    assert not sent(join(rendezvous, 2, 0), "round")
    told = sent(join(rendezvous, 1), "round")
    assert {peer: (it["first_rank"], it["group_rank"], it["world_size"]) for peer, it in told.items()} == {
        0: (0, 0, 6),
        1: (1, 1, 6),
        2: (3, 2, 6),
    }
    assert told[0]["nodes"] == ["node-0", "node-1", "node-2"]


def test_a_round_waits_for_its_store() -> None:
    rendezvous = Rendezvous(nodes=1, max_restarts=0)
    rendezvous.begin()
    assert not sent(join(rendezvous, 0), "round")
    assert sent(rendezvous.store_opened("master", 29500), "round")[0]["store_port"] == 29500


def test_when_all_are_done_all_may_leave() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0, 1)
    assert not sent(rendezvous.received(0, {"type": "done"}, 1.0), "end")
    assert set(sent(rendezvous.received(1, {"type": "done"}, 2.0), "end")) == {0, 1}
    assert rendezvous.outcome is True
    rendezvous.gone(0, "left")
    assert not rendezvous.finished
    rendezvous.gone(1, "left")
    assert rendezvous.finished


def test_without_restarts_a_failure_stops_everybody() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0, 1)
    actions = rendezvous.received(1, {"type": "failed", "rank": 1, "exit_code": 3, "signal": None}, 1.0)
    assert sent(actions, "stop")[0] == {
        "type": "stop",
        "reason": "rank 1 on node-1 ended with exit code 3",
        "node": "node-1",
    }
    assert rendezvous.outcome is False
    assert sent(join(rendezvous, 2), "stop"), "one that comes too late is told at once"


def test_one_failure_seen_from_two_sides_costs_one_restart() -> None:
    """Node 1 is killed, and node 0's rank fails because of it; either may be reported first."""
    for lost_first in (True, False):
        rendezvous = begun(2, max_restarts=1)
        join(rendezvous, 0, 1)
        for lost in (lost_first, not lost_first):
            actions = rendezvous.gone(1, "closed") if lost else rendezvous.received(0, FAILED, 1.0)
            assert not sent(actions, "stop")
        rendezvous.store_opened("master", 29501)
        join(rendezvous, 0, connect=False)
        assert sent(join(rendezvous, 1), "round")[0]["restart_count"] == 1


def test_a_second_failure_without_restarts_left_stops_everybody() -> None:
    rendezvous = begun(2, max_restarts=1)
    join(rendezvous, 0, 1)
    assert OpenStore() in rendezvous.received(0, FAILED, 1.0)
    rendezvous.store_opened("master", 29501)
    assert sent(join(rendezvous, 0, 1, connect=False), "round")
    assert set(sent(rendezvous.received(0, FAILED, 2.0), "stop")) == {0, 1}


def test_a_failure_of_a_waiting_node_ends_the_run() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0)
    failed = {"type": "failed", "rank": None, "exit_code": 1, "signal": None}
    assert sent(rendezvous.received(0, failed, 1.0), "stop")


def test_a_node_without_heartbeats_is_dropped() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0, 1)
    assert not rendezvous.tick(29.0)
    rendezvous.received(0, {"type": "heartbeat"}, 29.5)
    actions = rendezvous.tick(30.5)
    assert Drop(1) in actions
    assert Emit("node-lost", {"node": "node-1", "reason": "no sign of life for 30 s", "injected": False}) in actions
    assert set(sent(actions, "stop")) == {0}


@pytest.mark.parametrize(
    ("options", "lost_at"),
    [({"min_nodes": 1}, 5.5), ({"node_timeout": 8.0}, 8.5), ({"min_nodes": 1, "node_timeout": 8.0}, 8.5)],
)
def test_how_long_a_silent_node_is_waited_for(options: dict[str, Any], lost_at: float) -> None:
    rendezvous = Rendezvous(nodes=1, max_restarts=0, **options)
    join(rendezvous, 0)
    assert Drop(0) not in rendezvous.tick(lost_at - 1.0)
    assert Drop(0) in rendezvous.tick(lost_at)


def test_an_elastic_run_waits_longer_while_the_machine_is_busy() -> None:
    rendezvous, _ = training(2)
    assert Drop(1) not in rendezvous.tick(29.0, idle_since=28.0)
    assert Drop(1) in rendezvous.tick(33.5, idle_since=28.0)
    busy, _ = training(2)
    assert Drop(1) in busy.tick(30.5, idle_since=30.0)


def test_a_node_started_again_before_its_end_was_noticed_takes_its_own_place() -> None:
    rendezvous = begun(2, max_restarts=1)
    join(rendezvous, 0, 1)
    rendezvous.connected(7, "10.0.0.9", 1.0)
    actions = rendezvous.received(7, {"type": "join", "node": "node-1", "node_rank": 1, "nproc": 2}, 1.0)
    assert Drop(1) in actions
    assert set(sent(actions, "rejoin")) == {0}


def test_a_lone_node_may_come_back() -> None:
    rendezvous = begun(1, max_restarts=1)
    join(rendezvous, 0)
    assert OpenStore() in rendezvous.gone(0, "closed")
    rendezvous.store_opened("master", 29501)
    assert sent(join(rendezvous, 0, now=2.0), "round")


def test_a_connection_that_never_joins_holds_up_nobody_for_long() -> None:
    rendezvous = begun(1)
    rendezvous.connected(9, "10.0.0.9", 0.0)
    join(rendezvous, 0, now=20.0)
    assert set(sent(rendezvous.tick(30.5), "round")) == {0}


def test_without_elastic_absent_nodes_are_failures() -> None:
    rendezvous, marks = training(2, min_nodes=None)
    marks.add("node-1")
    assert sent(rendezvous.gone(1, "closed"), "stop")


def test_without_elastic_a_restart_waits_for_all_nodes() -> None:
    rendezvous, _ = training(3, min_nodes=None, max_restarts=1)
    rendezvous.gone(2, "closed")
    assert not sent(rejoin(rendezvous, 0, 1), "round")
    assert set(sent(join(rendezvous, 2), "round")) == {0, 1, 2}


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_others_go_on_at_once_without_a_node_that_was_killed_on_purpose(number: int) -> None:
    rendezvous, marks = training(4)
    marks.add(f"node-{number}")
    others = {0, 1, 2, 3} - {number}
    actions = rendezvous.gone(number, "closed")
    assert Emit("node-lost", {"node": f"node-{number}", "reason": "closed", "injected": True}) in actions
    assert set(sent(actions, "rejoin")) == others
    told = sent(rejoin(rendezvous, *others), "round")
    assert set(told) == others
    assert {(it["generation"], it["restart_count"]) for it in told.values()} == {(1, 0)}


def test_a_node_that_comes_back_calls_the_others_when_its_ranks_can_start() -> None:
    rendezvous, marks = training(2)
    marks.add("node-1")
    rendezvous.gone(1, "closed")
    rejoin(rendezvous, 0)
    marks.clear()
    assert not sent(come_back(rendezvous, 5, 1, 2.0), "rejoin"), "its imports cost nobody else time"
    assert set(sent(rendezvous.received(5, {"type": "ready"}, 3.0), "rejoin")) == {0}
    told = sent(rejoin(rendezvous, 0, now=3.0), "round")
    assert set(told) == {0, 5}
    assert told[0]["world_size"] == 2


def come_back(rendezvous: Rendezvous, peer: int, number: int, now: float) -> list[Action]:
    """Let a restarted node join before its ranks can start."""
    rendezvous.connected(peer, "10.0.0.9", now)
    message = {"type": "join", "node": f"node-{number}", "node_rank": number, "nproc": 1, "ready": False}
    return rendezvous.received(peer, message, now)


def test_nodes_that_come_back_together_interrupt_the_others_once() -> None:
    rendezvous, marks = training(3)
    marks.update(("node-1", "node-2"))
    rendezvous.gone(1, "closed")
    rendezvous.gone(2, "closed")
    rejoin(rendezvous, 0)
    come_back(rendezvous, 5, 1, 2.0)
    come_back(rendezvous, 6, 2, 2.0)
    assert not rendezvous.received(5, {"type": "ready"}, 3.0)
    assert set(sent(rendezvous.received(6, {"type": "ready"}, 4.0), "rejoin")) == {0}
    assert set(sent(rejoin(rendezvous, 0, now=4.0), "round")) == {0, 5, 6}


def test_a_rank_cannot_take_the_place_of_another_node() -> None:
    """Ranks can read the secret. With the name of another node, they could report in an elastic run that it is done."""
    rendezvous = begun(2, min_nodes=1)
    for peer, node, address in ((0, "node-0", "10.0.0.2"), (1, "node-1", "10.0.0.3"), (2, "node-0", "10.0.0.2")):
        rendezvous.connected(peer, address, 0.0)
        rendezvous.received(peer, {"type": "join", "node": node, "node_rank": 0, "nproc": 1}, 0.0)
    rendezvous.connected(3, "10.0.0.2", 0.0)
    rendezvous.connected(4, "10.0.0.4", 0.0)
    message = {"type": "join", "node": "node-1", "node_rank": 1, "nproc": 1}

    with pytest.raises(ValueError, match="node-1"):
        rendezvous.received(3, message, 1.0)
    assert Drop(1) in rendezvous.received(4, message, 2.0)  # in a new container


def test_a_node_that_comes_back_is_not_kept_waiting_by_one_that_dies_again() -> None:
    rendezvous, marks = training(3)
    marks.update(("node-1", "node-2"))
    rendezvous.gone(1, "closed")
    rendezvous.gone(2, "closed")
    rejoin(rendezvous, 0)
    come_back(rendezvous, 5, 1, 2.0)
    come_back(rendezvous, 6, 2, 2.0)
    rendezvous.received(5, {"type": "ready"}, 3.0)
    assert set(sent(rendezvous.gone(6, "closed"), "rejoin")) == {0}


def test_nodes_that_are_all_new_wait_for_one_another() -> None:
    rendezvous, marks = training(2)
    marks.update(("node-0", "node-1"))
    rendezvous.gone(0, "closed")
    rendezvous.gone(1, "closed")
    assert not rendezvous.finished
    rendezvous.store_opened("master", 29501)
    come_back(rendezvous, 5, 0, 2.0)
    come_back(rendezvous, 6, 1, 2.0)
    assert not sent(rendezvous.received(5, {"type": "ready"}, 3.0), "round")
    assert set(sent(rendezvous.received(6, {"type": "ready"}, 3.0), "round")) == {5, 6}


def test_with_fewer_nodes_than_the_least_the_rest_wait_for_more() -> None:
    rendezvous, marks = training(3, min_nodes=2)
    marks.update(("node-1", "node-2"))
    rendezvous.gone(1, "closed")
    rendezvous.gone(2, "closed")
    assert not sent(rejoin(rendezvous, 0), "round")
    assert not rendezvous.tick(3.0)
    assert set(sent(join(rendezvous, 2, now=4.0), "round")) == {0, 2}


def test_what_fails_because_of_a_marked_node_spends_no_restart() -> None:
    rendezvous, marks = training(3)
    marks.add("node-2")
    assert set(sent(rendezvous.received(0, FAILED, 1.0), "rejoin")) == {0, 1, 2}
    rendezvous.gone(2, "closed")
    assert set(sent(rejoin(rendezvous, 0, 1), "round")) == {0, 1}
    assert rendezvous.restart_count == 0


def test_a_real_failure_while_a_marked_node_is_away_fails_the_run() -> None:
    rendezvous, marks = training(3)
    marks.add("node-2")
    rendezvous.gone(2, "closed")
    rejoin(rendezvous, 0, 1)
    assert set(sent(rendezvous.received(0, FAILED, 2.0), "stop")) == {0, 1}


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_real_death_spends_a_restart(max_restarts: int) -> None:
    rendezvous, _ = training(3, max_restarts=max_restarts)
    actions = rendezvous.gone(1, "closed")
    assert set(sent(actions, "rejoin" if max_restarts else "stop")) == {0, 2}
    if max_restarts:
        assert set(sent(rejoin(rendezvous, 0, 2), "round")) == {0, 2}
        assert set(sent(rendezvous.received(0, FAILED, 2.0), "stop")) == {0, 2}


def test_a_node_that_fell_silent_while_it_was_marked_may_come_back() -> None:
    """The fault ends before the silence is noticed."""
    rendezvous, marks = training(2)
    marks.add("node-1")
    rendezvous.tick(0.5)
    marks.clear()
    rendezvous.received(0, {"type": "heartbeat"}, 5.0)
    actions = rendezvous.tick(5.1)
    assert Drop(1) in actions
    assert set(sent(actions, "rejoin")) == {0}
    rejoin(rendezvous, 0, now=5.2)
    rendezvous.connected(7, "10.0.0.9", 5.3)
    message = {"type": "join", "node": "node-1", "node_rank": 1, "nproc": 2}
    assert set(sent(rendezvous.received(7, message, 5.3), "rejoin")) == {0}


def test_a_node_that_rejoins_before_its_silence_is_noticed_is_no_failure() -> None:
    rendezvous, _ = training(2)
    rendezvous.connected(7, "10.0.0.9", 1.0)
    actions = rendezvous.received(7, {"type": "join", "node": "node-1", "node_rank": 1, "nproc": 2}, 1.0)
    assert Drop(1) in actions
    assert set(sent(actions, "rejoin")) == {0}
    assert set(sent(rejoin(rendezvous, 0), "round")) == {0, 7}


def test_a_node_that_dies_on_purpose_before_the_first_round_is_not_waited_for() -> None:
    marks = Marks()
    rendezvous = begun(3, min_nodes=2, marks=marks)
    join(rendezvous, 0, 1)
    assert not rendezvous.tick(1.0)
    marks.add("node-2")
    assert set(sent(rendezvous.tick(2.0), "round")) == {0, 1}


def test_a_node_that_dies_while_a_round_forms_holds_up_nobody() -> None:
    rendezvous, marks = training(3)
    marks.update(("node-1", "node-2"))
    rendezvous.gone(1, "closed")
    assert not sent(rejoin(rendezvous, 0), "round")
    assert set(sent(rendezvous.gone(2, "closed"), "round")) == {0}


def test_when_those_left_are_done_the_run_has_passed() -> None:
    rendezvous, marks = training(2)
    marks.add("node-1")
    rendezvous.gone(1, "closed")
    rejoin(rendezvous, 0)
    assert sent(rendezvous.received(0, {"type": "done"}, 2.0), "end")
    assert rendezvous.outcome is True


def test_a_death_on_purpose_after_all_others_are_done_changes_nothing() -> None:
    rendezvous, marks = training(2)
    marks.add("node-1")
    rendezvous.received(0, {"type": "done"}, 1.0)
    assert sent(rendezvous.gone(1, "closed"), "end")


def test_a_node_that_returns_when_some_are_done_interrupts_nobody() -> None:
    rendezvous, marks = training(3)
    marks.add("node-2")
    rendezvous.gone(2, "closed")
    rejoin(rendezvous, 0, 1)
    rendezvous.received(0, {"type": "done"}, 2.0)
    assert not sent(join(rendezvous, 2, now=2.1), "rejoin")
    assert set(sent(rendezvous.received(1, {"type": "done"}, 2.2), "end")) == {0, 1, 2}
