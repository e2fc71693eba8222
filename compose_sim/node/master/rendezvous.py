"""Who takes part in the next round, and what must each node be told? The rendezvous as a state machine, without sockets or clock.

Inputs are what happened to a peer (a connection) and the time in seconds on any steady clock; outputs are acts to perform in order.

Rounds are of all nodes, and a failure calls all of them together again, as often as there are restarts. Elastic ones begin again with
the nodes that are left, and with those that come back; the loss of a node that was marked as absent is no failure, nor is what follows
from it in others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable

from ..shared.decisions import Act, Drop, Note, Send
from ..shared.master_protocol import SILENCE_SECONDS, Message


@dataclass(frozen=True)
class OpenStore(Act):
    """Open a fresh store, and hand its address to `store_opened`."""


@dataclass
class _Member:
    """One connection, and the node at its other end once it has joined."""

    heard: float
    node: str = ""
    node_rank: int = -1
    nproc: int = 0
    # silent (never joined), warming (its ranks cannot start yet, and others train), waiting, running, done, called (to rejoin)
    phase: str = "silent"
    ready: bool = False  # its ranks can start
    took_part: bool = False  # in any round


@dataclass
class Rendezvous:
    """
    Rounds of `nodes` nodes, begun anew after at most `max_restarts` failures.

    With `min_nodes` they are elastic, and only the first is of `nodes`. `absent` says which nodes are marked at this moment:
    what happens to them was wanted.
    """

    nodes: int
    max_restarts: int
    min_nodes: int | None = None
    absent: Callable[[], frozenset[str]] = frozenset
    generation: int = -1
    restart_count: int = 0
    outcome: bool | None = None  # True: all nodes are done; False: the run has failed
    _members: dict[int, _Member] = field(default_factory=dict)
    _round_nodes: frozenset[str] = frozenset()  # of the latest round
    _lost: set[str] = field(default_factory=set)
    _marked_at: dict[str, float] = field(default_factory=dict)
    _store: Message | None = None
    _store_asked: bool = True
    _because: str = ""
    _end: Message = field(default_factory=dict)

    def begin(self) -> list[Act]:
        """Before anything else: the first round's store can be opened while nodes are still starting."""
        return [OpenStore()]

    def store_opened(self, host: str | None, port: int, now: float) -> list[Act]:
        """The next round's store listens at `host:port`; without a `host` there is none, and `port` is free for the first rank."""
        self._store, self._store_asked = {"store_host": host, "store_port": port}, False
        return self._go_on()

    def connected(self, peer: int, address: str, now: float) -> list[Act]:
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
        if kind == "ready" and member.phase == "warming":
            member.ready = True
            return self._go_on()
        if kind == "done" and member.phase == "running":
            member.phase = "done"
            return self._finish_if_done()
        # A failure in a round that has already ended (another node failed first) is no news.
        if kind == "failed" and member.phase in ("running", "waiting", "warming"):
            injected = member.phase == "running" and self._is_injected()
            member.phase = "running"  # one that failed while it waited has to be called again too
            return self._failed(member.node, _words(member.node, message), injected=injected)
        return []

    def gone(self, peer: int, reason: str, now: float) -> list[Act]:
        """The connection of `peer` has ended."""
        member = self._members.pop(peer, None)
        if member is None:
            return []
        if not member.node or self.outcome is not None or member.phase == "done":
            return self._go_on()
        self._lost.add(member.node)
        injected = self._is_injected(member.node, since=member.heard)
        acts: list[Act] = [Note("node-lost", {"node": member.node, "reason": reason, "injected": injected})]
        # Between the call to rejoin and its answer a loss is a consequence of the failure that led to the call.
        if member.phase != "called" and not (injected and member.phase != "running"):
            acts += self._failed(member.node, f"{member.node} was lost: {reason}", injected=injected)
        return acts + self._go_on()

    def tick(self, now: float) -> list[Act]:
        """Time has passed: give up silent nodes."""
        acts: list[Act] = []
        self._marked_at.update(dict.fromkeys(self.absent(), now))
        for peer in [peer for peer, member in self._members.items() if now - member.heard > SILENCE_SECONDS]:
            acts += [Drop(peer), *self.gone(peer, f"silent for {SILENCE_SECONDS:.0f} s", now)]
        return acts + self._go_on()

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
            self._marked_at[node] = now  # it lives: that its old connection ends is no failure where rounds are elastic
            acts += [Drop(other), *self.gone(other, "started again", now)]
        member.node, member.node_rank, member.nproc = node, int(message["node_rank"]), int(message["nproc"])
        self._lost.discard(node)
        acts.append(Note("node-joined", {"node": node, "node_rank": member.node_rank, "nproc": member.nproc}))
        if self._is_elastic and self.generation >= 0 and not message.get("ready", True):
            member.phase, member.ready = "warming", False  # the others need not wait for its imports
            return acts
        return acts + self._waits(member) + self._go_on()

    def _waits(self, member: _Member) -> list[Act]:
        """A node is ready for a round. Where some are done already, there is no more to join."""
        member.phase = "waiting"
        phases = {other.phase for other in self._members.values()}
        return self._rejoin(f"{member.node} joined") if "running" in phases and "done" not in phases else []

    def _finish_if_done(self) -> list[Act]:
        phases = {member.phase for member in self._members.values() if member.node}
        if "done" not in phases or phases & {"running", "called"}:
            return []
        return self._finish(True, {"type": "end"}, "all nodes are done")

    def _failed(self, node: str, reason: str, *, injected: bool) -> list[Act]:
        if self.outcome is not None:
            return []
        if injected:
            return self._finish_if_done() or self._rejoin(reason)
        if self.restart_count >= self.max_restarts:
            return self._finish(False, {"type": "stop", "reason": reason, "node": node}, reason)
        self.restart_count += 1
        return self._rejoin(reason)

    def _rejoin(self, reason: str) -> list[Act]:
        """Call all nodes of the present round together again, behind a store that nothing of that round has touched."""
        self._because = reason
        acts: list[Act] = []
        for peer, member in self._members.items():
            if member.phase in ("running", "done"):
                member.phase = "called"
                acts.append(Send(peer, {"type": "rejoin", "reason": reason}))
        return acts + self._ask_for_store()

    def _ask_for_store(self) -> list[Act]:
        if self._store is not None or self._store_asked:
            return []
        self._store_asked = True
        return [OpenStore()]

    @property
    def _is_elastic(self) -> bool:
        return self.min_nodes is not None

    def _is_injected(self, node: str = "", *, since: float = float("inf")) -> bool:
        """Whether what happens to `node`, or to any node of the present round, follows from what was done on purpose."""
        if not self._is_elastic:
            return False
        # One may have been marked when it fell silent, and not be any more when that is noticed.
        marked = self.absent() | {other for other, at in self._marked_at.items() if at >= since}
        return bool(({node} if node else self._round_nodes) & marked)

    def _finish(self, passed: bool, message: Message, reason: str) -> list[Act]:
        self.outcome, self._end = passed, message
        acts: list[Act] = [Note("ended", {"passed": passed, "reason": reason, "node": message.get("node")})]
        return acts + [Send(peer, message) for peer, member in self._members.items() if member.node]

    def _go_on(self) -> list[Act]:
        """What follows from the phases that nodes are in now."""
        warming = [member for member in self._members.values() if member.phase == "warming"]
        ready = [member for member in warming if member.ready]
        acts: list[Act] = []
        # Nodes that come together interrupt those that train once, not each of them.
        if ready == warming or not any(member.phase in ("running", "done") for member in self._members.values()):
            for member in ready:
                acts += self._waits(member)
        return acts + self._close_round()

    def _close_round(self) -> list[Act]:
        """Begin the next round if everybody who takes part is here."""
        by_phase: dict[str, list[_Member]] = {}
        for member in self._members.values():
            by_phase.setdefault(member.phase, []).append(member)
        waiting, warming = by_phase.pop("waiting", []), by_phase.pop("warming", [])
        if self.outcome is not None or by_phase or not waiting:
            return []
        # Those that trained together go on at once; where all of them are new, one round of all is better than several.
        if len(waiting) < self._needed() or (warming and not any(member.took_part for member in waiting)):
            return []
        if self._store is None:
            return self._ask_for_store()
        self.generation += 1
        store, self._store = self._store, None
        return self._round(store)

    def _needed(self) -> int:
        """How many nodes the next round has at least."""
        if self.min_nodes is None:
            return self.nodes
        if self.generation >= 0:
            return self.min_nodes
        present = {member.node for member in self._members.values()}
        return max(self.min_nodes, self.nodes - len((self._lost | self.absent()) - present))

    def _round(self, store: Message) -> list[Act]:
        # By node number: names would sort node-10 before node-2.
        waiting = [(peer, member) for peer, member in self._members.items() if member.phase == "waiting"]
        ordered = sorted(waiting, key=lambda item: (item[1].node_rank, item[1].node))
        common = {
            "type": "round",
            "generation": self.generation,
            "restart_count": self.restart_count,
            "max_restarts": self.max_restarts,
            "world_size": sum(member.nproc for _, member in ordered),
            "group_world_size": len(ordered),
            "nodes": [member.node for _, member in ordered],
            "nproc": [member.nproc for _, member in ordered],
            **store,
        }
        self._round_nodes = frozenset(member.node for _, member in ordered)
        told = {key: value for key, value in common.items() if key != "type"}
        acts: list[Act] = [Note("round", {**told, "because": self._because})]
        first_rank = 0
        for group_rank, (peer, member) in enumerate(ordered):
            member.phase, member.took_part = "running", True
            acts.append(Send(peer, {**common, "first_rank": first_rank, "group_rank": group_rank}))
            first_rank += member.nproc
        return acts


def _words(node: str, failure: Message) -> str:
    rank, signal = failure.get("rank"), failure.get("signal")
    how = f"was ended by signal {signal}" if signal else f"ended with exit code {failure.get('exit_code')}"
    return f"rank {rank} on {node} {how}" if rank is not None else f"{node} failed: it {how}"
