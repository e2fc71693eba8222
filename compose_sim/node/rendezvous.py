"""Who takes part in the next round, and what must each node be told? The rendezvous as a state machine, without sockets or clock.

Inputs are what happened to a peer (a connection) and the time in seconds on any steady clock; outputs are acts to perform in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from .wire import SILENCE_SECONDS, Message

LAST_CALL_SECONDS = 1.0  # with fewer nodes than expected, how long the latest to join is followed by nobody


@dataclass(frozen=True)
class Send:
    """Send `message` to `peer`."""

    peer: int
    message: Message


@dataclass(frozen=True)
class Drop:
    """Close the connection of `peer`."""

    peer: int


@dataclass(frozen=True)
class OpenStore:
    """Open a fresh store, and hand its address to `store_opened`."""


@dataclass(frozen=True)
class Note:
    """Write down what happened."""

    kind: str
    data: dict[str, Any]


Act = Union[Send, Drop, OpenStore, Note]


@dataclass
class _Member:
    """One connection, and the node at its other end once it has joined."""

    heard: float
    node: str = ""
    node_rank: int = -1
    nproc: int = 0
    phase: str = "silent"  # silent (never joined), waiting, running, done, called (to rejoin)


@dataclass
class Rendezvous:
    """Rounds of `nodes` nodes (at least `min_nodes`), begun anew at most `max_restarts` times after a failure."""

    nodes: int
    min_nodes: int
    max_restarts: int
    generation: int = -1
    restart_count: int = 0
    outcome: bool | None = None  # True: all nodes are done; False: the run has failed
    _members: dict[int, _Member] = field(default_factory=dict)
    _store: Message | None = None
    _store_asked: bool = True
    _latest_join: float = 0.0
    _end: Message = field(default_factory=dict)

    def begin(self) -> list[Act]:
        """Before anything else: the first round's store can be opened while nodes are still starting."""
        return [OpenStore()]

    def store_opened(self, host: str | None, port: int, now: float) -> list[Act]:
        """The next round's store listens at `host:port`; without a `host` there is none, and `port` is free for the first rank."""
        self._store, self._store_asked = {"store_host": host, "store_port": port}, False
        return self._close_round(now)

    def connected(self, peer: int, now: float) -> list[Act]:
        self._members[peer] = _Member(heard=now)
        return []

    def received(self, peer: int, message: Message, now: float) -> list[Act]:
        """A node sent `message`; one that is not known only counts as a sign of life."""
        member = self._members.get(peer)
        if member is None:
            return []
        member.heard = now
        kind = message["type"]
        if kind == "join":
            return self._joined(peer, member, message, now)
        if kind == "done" and member.phase == "running":
            return self._done(member)
        # A failure in a round that has already ended (another node failed first) is no news.
        if kind == "failed" and member.phase in ("running", "waiting"):
            member.phase = "running"  # one that failed while it waited has to be called again too
            return self._failed(member.node, _words(member.node, message))
        return []

    def gone(self, peer: int, reason: str, now: float) -> list[Act]:
        """The connection of `peer` has ended."""
        member = self._members.pop(peer, None)
        if member is None:
            return []
        if not member.node or self.outcome is not None or member.phase == "done":
            return self._close_round(now)
        acts: list[Act] = [Note("node-lost", {"node": member.node, "reason": reason})]
        # Between the call to rejoin and its answer a loss is a consequence of the failure that led to the call.
        if member.phase != "called":
            acts += self._failed(member.node, f"{member.node} was lost: {reason}")
        return acts + self._close_round(now)

    def tick(self, now: float) -> list[Act]:
        """Time has passed: give up silent nodes, and close a round whose last call is over."""
        acts: list[Act] = []
        for peer in [peer for peer, member in self._members.items() if now - member.heard > SILENCE_SECONDS]:
            acts += [Drop(peer), *self.gone(peer, f"silent for {SILENCE_SECONDS:.0f} s", now)]
        return acts + self._close_round(now)

    @property
    def finished(self) -> bool:
        """The run has ended and every node has left."""
        return self.outcome is not None and not self._members

    def _joined(self, peer: int, member: _Member, message: Message, now: float) -> list[Act]:
        if self.outcome is not None:
            return [Send(peer, self._end)]
        acts: list[Act] = []
        node = str(message["node"])
        for other in [other for other, its in self._members.items() if its.node == node and other != peer]:
            acts += [Drop(other), *self.gone(other, "started again", now)]
        member.node, member.node_rank, member.nproc = node, int(message["node_rank"]), int(message["nproc"])
        member.phase = "waiting"
        self._latest_join = now
        acts.append(Note("node-joined", {"node": node, "node_rank": member.node_rank, "nproc": member.nproc}))
        if any(other.phase in ("running", "done") for other in self._members.values()):
            acts += self._rejoin(f"{node} joined")
        return acts + self._close_round(now)

    def _done(self, member: _Member) -> list[Act]:
        member.phase = "done"
        if any(other.phase != "done" for other in self._members.values() if other.node):
            return []
        return self._finish(True, {"type": "end"}, "all nodes are done")

    def _failed(self, node: str, reason: str) -> list[Act]:
        if self.outcome is not None:
            return []
        if self.restart_count >= self.max_restarts:
            return self._finish(False, {"type": "stop", "reason": reason, "node": node}, reason)
        self.restart_count += 1
        return self._rejoin(reason)

    def _rejoin(self, reason: str) -> list[Act]:
        """Call all nodes of the present round together again, behind a store that nothing of that round has touched."""
        acts: list[Act] = []
        for peer, member in self._members.items():
            if member.phase in ("running", "done"):
                member.phase = "called"
                acts.append(Send(peer, {"type": "rejoin", "reason": reason}))
        if self._store is None and not self._store_asked:
            self._store_asked = True
            acts.append(OpenStore())
        return acts

    def _finish(self, passed: bool, message: Message, reason: str) -> list[Act]:
        self.outcome, self._end = passed, message
        acts: list[Act] = [Note("ended", {"passed": passed, "reason": reason, "node": message.get("node")})]
        return acts + [Send(peer, message) for peer, member in self._members.items() if member.node]

    def _close_round(self, now: float) -> list[Act]:
        """Begin the next round if everybody who takes part is here."""
        waiting = [member for member in self._members.values() if member.phase == "waiting"]
        if self.outcome is not None or self._store is None or len(waiting) < max(1, len(self._members)):
            return []
        last_call_over = len(waiting) >= self.min_nodes and now >= self._latest_join + LAST_CALL_SECONDS
        if len(waiting) < self.nodes and not last_call_over:
            return []
        self.generation += 1
        store, self._store = self._store, None
        return self._round(store)

    def _round(self, store: Message) -> list[Act]:
        # By node number: names would sort node-10 before node-2.
        ordered = sorted(self._members.items(), key=lambda item: (item[1].node_rank, item[1].node))
        common = {
            "type": "round",
            "generation": self.generation,
            "restart_count": self.restart_count,
            "max_restarts": self.max_restarts,
            "world_size": sum(member.nproc for _, member in ordered),
            "group_world_size": len(ordered),
            "nodes": [member.node for _, member in ordered],
            **store,
        }
        acts: list[Act] = [Note("round", {key: value for key, value in common.items() if key != "type"})]
        first_rank = 0
        for group_rank, (peer, member) in enumerate(ordered):
            member.phase = "running"
            acts.append(Send(peer, {**common, "first_rank": first_rank, "group_rank": group_rank}))
            first_rank += member.nproc
        return acts


def _words(node: str, failure: Message) -> str:
    rank, signal = failure.get("rank"), failure.get("signal")
    how = f"was ended by signal {signal}" if signal else f"ended with exit code {failure.get('exit_code')}"
    return f"rank {rank} on {node} {how}" if rank is not None else f"{node} failed: it {how}"
