"""Who is told what, and when? The rendezvous alone: no sockets, and a clock that the test moves."""

from __future__ import annotations

from typing import Any

from compose_sim.node.rendezvous import Act, Drop, Note, OpenStore, Rendezvous, Send


def begun(nodes: int, *, min_nodes: int | None = None, max_restarts: int = 0) -> Rendezvous:
    rendezvous = Rendezvous(nodes=nodes, min_nodes=min_nodes or nodes, max_restarts=max_restarts)
    assert rendezvous.begin() == [OpenStore()]
    rendezvous.store_opened("master", 29500, 0.0)
    return rendezvous


def join(rendezvous: Rendezvous, *numbers: int, now: float = 0.0, connect: bool = True) -> list[Act]:
    acts: list[Act] = []
    for number in numbers:
        if connect:
            rendezvous.connected(number, now)
        message = {"type": "join", "node": f"node-{number}", "node_rank": number, "nproc": number + 1}
        acts += rendezvous.received(number, message, now)
    return acts


def sent(acts: list[Act], kind: str) -> dict[int, dict[str, Any]]:
    return {act.peer: act.message for act in acts if isinstance(act, Send) and act.message["type"] == kind}


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
    rendezvous = Rendezvous(nodes=1, min_nodes=1, max_restarts=0)
    rendezvous.begin()
    assert not sent(join(rendezvous, 0), "round")
    assert sent(rendezvous.store_opened("master", 29500, 0.0), "round")[0]["store_port"] == 29500


def test_fewer_nodes_begin_after_a_last_call() -> None:
    rendezvous = begun(3, min_nodes=2)
    join(rendezvous, 0, 1, now=10.0)
    assert not rendezvous.tick(10.9)
    assert set(sent(rendezvous.tick(11.0), "round")) == {0, 1}


def test_when_all_are_done_all_may_leave() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0, 1)
    assert not sent(rendezvous.received(0, {"type": "done"}, 1.0), "end")
    assert set(sent(rendezvous.received(1, {"type": "done"}, 2.0), "end")) == {0, 1}
    assert rendezvous.outcome is True
    rendezvous.gone(0, "left", 3.0)
    assert not rendezvous.finished
    rendezvous.gone(1, "left", 3.0)
    assert rendezvous.finished


def test_without_restarts_a_failure_stops_everybody() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0, 1)
    acts = rendezvous.received(1, {"type": "failed", "rank": 1, "exit_code": 3, "signal": None}, 1.0)
    assert sent(acts, "stop")[0] == {
        "type": "stop",
        "reason": "rank 1 on node-1 ended with exit code 3",
        "node": "node-1",
    }
    assert rendezvous.outcome is False
    assert sent(join(rendezvous, 2), "stop"), "one that comes too late is told at once"


def test_one_failure_seen_from_two_sides_costs_one_restart() -> None:
    """Node 1 is killed, and node 0's rank fails because of it: whichever is heard first."""
    for lost_first in (True, False):
        rendezvous = begun(2, max_restarts=1)
        join(rendezvous, 0, 1)
        failed = {"type": "failed", "rank": 0, "exit_code": 1, "signal": None}
        for lost in (lost_first, not lost_first):
            acts = rendezvous.gone(1, "closed", 1.0) if lost else rendezvous.received(0, failed, 1.0)
            assert not sent(acts, "stop")
        rendezvous.store_opened("master", 29501, 1.0)
        join(rendezvous, 0, connect=False)
        assert sent(join(rendezvous, 1), "round")[0]["restart_count"] == 1


def test_a_second_failure_without_restarts_left_stops_everybody() -> None:
    rendezvous = begun(2, max_restarts=1)
    join(rendezvous, 0, 1)
    failed = {"type": "failed", "rank": 0, "exit_code": 1, "signal": None}
    assert OpenStore() in rendezvous.received(0, failed, 1.0)
    rendezvous.store_opened("master", 29501, 1.0)
    assert sent(join(rendezvous, 0, 1, connect=False), "round")
    assert set(sent(rendezvous.received(0, failed, 2.0), "stop")) == {0, 1}


def test_a_node_that_fails_while_it_waits_is_heard() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0)
    failed = {"type": "failed", "rank": None, "exit_code": 1, "signal": None}
    assert sent(rendezvous.received(0, failed, 1.0), "stop")


def test_a_silent_node_is_dropped_and_its_beats_keep_it() -> None:
    rendezvous = begun(2)
    join(rendezvous, 0, 1)
    rendezvous.received(0, {"type": "beat"}, 4.0)
    acts = rendezvous.tick(5.5)
    assert Drop(1) in acts
    assert Note("node-lost", {"node": "node-1", "reason": "silent for 5 s"}) in acts
    assert set(sent(acts, "stop")) == {0}


def test_a_node_started_again_before_its_end_was_noticed_takes_its_own_place() -> None:
    rendezvous = begun(2, max_restarts=1)
    join(rendezvous, 0, 1)
    rendezvous.connected(7, 1.0)
    acts = rendezvous.received(7, {"type": "join", "node": "node-1", "node_rank": 1, "nproc": 2}, 1.0)
    assert Drop(1) in acts
    assert set(sent(acts, "rejoin")) == {0}


def test_a_lone_node_may_come_back() -> None:
    rendezvous = begun(1, max_restarts=1)
    join(rendezvous, 0)
    assert OpenStore() in rendezvous.gone(0, "closed", 1.0)
    rendezvous.store_opened("master", 29501, 1.0)
    assert sent(join(rendezvous, 0, now=2.0), "round")


def test_a_connection_that_never_joins_holds_up_nobody_for_long() -> None:
    rendezvous = begun(1)
    rendezvous.connected(9, 0.0)
    join(rendezvous, 0, now=4.0)
    assert set(sent(rendezvous.tick(5.5), "round")) == {0}
