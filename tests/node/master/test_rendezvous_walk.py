"""An elastic run survives any sequence of faults without using up a restart.

The nodes are minimal (they answer what they receive, some time later), but the rendezvous is real; the clock is
simulated.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from compose_sim.node.master.coordinator import Action, Drop, Send
from compose_sim.node.master.rendezvous import OpenStore, Rendezvous

NODES = 4


class Walk:
    """One run. The peer of a node is None while it is down or cut off; messages that it will send wait in `saying`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.marks: set[str] = set()
        self.least = self.random.randint(1, NODES)
        self.rendezvous = Rendezvous(
            nodes=NODES, min_nodes=self.least, max_restarts=0, absent=lambda: frozenset(self.marks)
        )
        self.peers: dict[int, int | None] = dict.fromkeys(range(NODES))
        self.saying: list[tuple[int, dict[str, Any]]] = []  # (peer, message), in order for each peer
        self.opening = False
        self.frozen: set[int] = set()
        self.trains: dict[int, int] = {}  # peer -> current round
        self.next_peer = 0
        self.perform(self.rendezvous.begin())
        for number in range(NODES):
            self.start(number)

    def perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, OpenStore):
                self.opening = True
            elif isinstance(action, Drop):
                self.trains.pop(action.peer, None)
                self.saying = [said for said in self.saying if said[0] != action.peer]
            elif isinstance(action, Send):
                self.hear(action.peer, action.message)

    def hear(self, peer: int, message: dict[str, Any]) -> None:
        assert message["type"] in ("round", "rejoin", "end"), message
        if message["type"] == "round":
            assert message["restart_count"] == 0
            assert message["group_world_size"] >= self.least
            self.trains[peer] = message["generation"]
        elif message["type"] == "rejoin":
            self.trains.pop(peer, None)
            number = next((number for number, its in self.peers.items() if its == peer), None)
            if number is not None:
                self.saying.append((peer, self.joining(number, ready=True)))

    @staticmethod
    def joining(number: int, *, ready: bool) -> dict[str, Any]:
        return {"type": "join", "node": f"node-{number}", "node_rank": number, "nproc": 1, "ready": ready}

    def start(self, number: int, *, ready: bool = False) -> None:
        self.peers[number] = peer = self.next_peer
        self.next_peer += 1
        self.rendezvous.connected(peer, "10.0.0.9", self.now)
        self.saying.append((peer, self.joining(number, ready=ready)))
        if not ready:
            self.saying.append((peer, {"type": "ready"}))

    def kill(self, number: int) -> None:
        """Mark a node as absent, and kill it; ranks of others may fail because of it before or after the master notices."""
        peer = self.peers[number]
        if peer is None:
            return
        self.marks.add(f"node-{number}")
        others = [other for other in self.trains if other != peer and other not in self.frozen_peers()]
        if peer in self.trains and others and self.random.random() < 0.5:
            self.saying.append((self.random.choice(others), {"type": "failed", "rank": 0, "exit_code": 1}))
            self.step()
        self.peers[number] = None
        self.frozen.discard(number)
        self.trains.pop(peer, None)
        self.saying = [said for said in self.saying if said[0] != peer]
        self.perform(self.rendezvous.gone(peer, "closed"))

    def freeze(self, number: int) -> None:
        if self.peers[number] is not None:
            self.marks.add(f"node-{number}")
            self.frozen.add(number)

    def heal(self, number: int) -> None:
        """Start a node again, or let it continue, in which case it finds out whether it was dropped."""
        if number in self.frozen:
            self.frozen.discard(number)
            if self.peers[number] not in self.rendezvous._members:
                self.start(number, ready=True)
        elif self.peers[number] is None:
            self.start(number)
        self.marks.discard(f"node-{number}")

    def frozen_peers(self) -> set[int | None]:
        return {self.peers[number] for number in self.frozen}

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for number, peer in self.peers.items():
            if peer is not None and number not in self.frozen:
                self.perform(self.rendezvous.received(peer, {"type": "heartbeat"}, self.now))
        self.perform(self.rendezvous.tick(self.now))

    def step(self) -> bool:
        """Let one pending thing happen: a node sends a message, or a store opens. Return False if nothing is pending."""
        blocked = self.frozen_peers()
        speakers = list(dict.fromkeys(peer for peer, _ in self.saying if peer not in blocked))
        if self.opening and (not speakers or self.random.random() < 0.3):
            self.opening = False
            self.perform(self.rendezvous.store_opened("master", 1))
            return True
        if not speakers:
            return False
        chosen = self.random.choice(speakers)
        said = next(said for said in self.saying if said[0] == chosen)
        self.saying.remove(said)
        self.perform(self.rendezvous.received(*said, self.now))
        return True

    def settle(self) -> None:
        while self.step():
            pass
        self.pass_time(0.25)
        while self.step():
            pass


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_an_elastic_run_survives_whatever_is_done_on_purpose(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        walk = Walk(seed)
        for _ in range(60):
            number = walk.random.randrange(NODES)
            deed = walk.random.choice(["kill", "freeze", "heal", "heal", "heal", "time", "step", "step", "settle"])
            if deed == "time":
                walk.pass_time(walk.random.choice([0.25, 1.0, 3.0, 6.0]))
            elif deed in ("step", "settle"):
                getattr(walk, deed)()
            else:
                getattr(walk, deed)(number)
        for number in range(NODES):
            walk.heal(number)
        walk.settle()
        assert walk.rendezvous.outcome is None, seed
        assert walk.trains == dict.fromkeys(walk.peers.values(), walk.rendezvous.generation), seed
        for peer in list(walk.trains):
            walk.perform(walk.rendezvous.received(peer, {"type": "done"}, walk.now))
        assert walk.rendezvous.outcome is True, seed
