"""Which nodes are there for the driver, and when is the run over? Without sockets or clock: one program drives all nodes.

A node that joins is taken in as soon as the driver accepts nodes, and told its ranks, which are the same each time: those that were
planned. The driver is told of each change. Losing a node ends nothing: that is the framework's business. The driver's end is the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..shared.decisions import Act, Drop, Note, Send
from ..shared.master_protocol import SILENCE_SECONDS, Message


@dataclass(frozen=True)
class StartDriver(Act):
    """Start the driver."""


@dataclass(frozen=True)
class Tell(Act):
    """Tell the driver."""

    message: Message


@dataclass
class _Member:
    """One connection, and the node at its other end once it has joined."""

    heard: float
    address: str
    node: str = ""
    node_rank: int = -1
    ranks_started: bool = False


@dataclass
class Gathering:
    """
    The nodes of one driver. `slots` holds the ranks of each node that may ever take part, in order of their numbers.

    `head_port` is where the framework's head listens; `absent` says which nodes are marked at this moment: what happens to
    them was wanted.
    """

    slots: Sequence[int]
    host: str
    head_port: int
    absent: Callable[[], frozenset[str]] = frozenset
    generation: int = 0
    outcome: bool | None = None
    _accepts: bool = False
    _members: dict[int, _Member] = field(default_factory=dict)
    _marked_at: dict[str, float] = field(default_factory=dict)
    _came: set[str] = field(default_factory=set)  # nodes that have ever joined
    _ended_at: float | None = None
    _is_late: bool = False  # who has not come by now need not be told that it is over

    def begin(self) -> list[Act]:
        return [StartDriver()]

    def connected(self, peer: int, address: str, now: float) -> list[Act]:
        self._members[peer] = _Member(heard=now, address=address)
        return []

    def received(self, peer: int, message: Message, now: float) -> list[Act]:
        """A node sent `message`; one that is not known only counts as a sign of life."""
        member = self._members.get(peer)
        if member is None:
            return []
        member.heard = now
        if message["type"] == "join":
            return self._joined(peer, member, message)
        if message["type"] in ("failed", "done") and member.ranks_started:
            code = message.get("exit_code") or 0
            reason = f"what {member.node} runs ended with exit code {code}"
            return [*self._leave(member), Send(peer, {"type": "stop", "reason": reason})]
        return []

    def gone(self, peer: int, reason: str, now: float) -> list[Act]:
        """The connection of `peer` has ended."""
        member = self._members.pop(peer, None)
        if member is None or not member.node or self.outcome is not None:
            return []
        marked = self.absent() | {node for node, at in self._marked_at.items() if at >= member.heard}
        lost = Note("node-lost", {"node": member.node, "reason": reason, "injected": member.node in marked})
        return [lost, *self._leave(member)]

    def tick(self, now: float) -> list[Act]:
        """Time has passed: give up silent nodes."""
        self._marked_at.update(dict.fromkeys(self.absent(), now))
        if self.outcome is not None:
            self._ended_at = now if self._ended_at is None else self._ended_at
            self._is_late = now - self._ended_at > SILENCE_SECONDS
        acts: list[Act] = []
        for peer in [peer for peer, member in self._members.items() if now - member.heard > SILENCE_SECONDS]:
            acts += [Drop(peer), *self.gone(peer, f"silent for {SILENCE_SECONDS:.0f} s", now)]
        return acts

    def driver_said(self, message: Message) -> list[Act]:
        """
        `accepting`: nodes may start what they run. `ready`: the framework itself says that all are there, with what they have.

        ValueError for what is neither.
        """
        if message["type"] == "accepting":
            self._accepts = True
            return [act for peer in list(self._members) for act in self._take_in(peer)]
        if message["type"] == "ready":
            return [Note("ready", {key: value for key, value in message.items() if key != "type"})]
        raise ValueError(message["type"])

    def driver_ended(self, code: int) -> list[Act]:
        """The driver has ended: 0 for well, negative for a signal. So has the run."""
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = f"the driver {how}"
        self.outcome = code == 0
        message: Message = {"type": "end"} if code == 0 else {"type": "stop", "reason": reason, "node": "driver"}
        ended = Note("ended", {"passed": code == 0, "reason": reason, "node": None, "exit_code": code})
        return [ended, *(Send(peer, message) for peer, member in self._members.items() if member.node)]

    @property
    def finished(self) -> bool:
        """The driver has ended, and every node has left. One that ended before it accepted any did so while they were on their way."""
        are_on_their_way = not self._accepts and len(self._came) < len(self.slots) and not self._is_late
        return self.outcome is not None and not self._members and not are_on_their_way

    def _joined(self, peer: int, member: _Member, message: Message) -> list[Act]:
        self._came.add(str(message["node"]))
        if self.outcome is not None:
            return [Send(peer, {"type": "end"} if self.outcome else {"type": "stop", "reason": "the run has ended"})]
        acts: list[Act] = []
        node, node_rank = str(message["node"]), int(message["node_rank"])
        if not 0 <= node_rank < len(self.slots):
            raise ValueError(f"node number {node_rank} was never planned")
        for other in [other for other, its in self._members.items() if its.node == node and other != peer]:
            acts += [Drop(other), *self.gone(other, "started again", self._members[other].heard)]
        member.node, member.node_rank, member.ranks_started = node, node_rank, False
        joined = Note("node-joined", {"node": node, "node_rank": member.node_rank, "nproc": int(message["nproc"])})
        return [*acts, joined, *self._take_in(peer)]

    def _take_in(self, peer: int) -> list[Act]:
        member = self._members[peer]
        if not (self._accepts and member.node) or member.ranks_started:
            return []
        member.ranks_started = True
        first_ranks = [0, *accumulate(self.slots)]
        round_ = {
            "type": "round",
            "generation": self.generation,
            "restart_count": 0,
            "max_restarts": 0,
            "world_size": sum(self.slots),
            "group_world_size": len(self.slots),
            "nodes": [f"node-{number}" for number in range(len(self.slots))],
            "nproc": list(self.slots),
            "store_host": self.host,
            "store_port": self.head_port,
            "first_rank": first_ranks[member.node_rank],
            "group_rank": member.node_rank,
        }
        return [Send(peer, round_), Tell(self._present())]

    def _leave(self, member: _Member) -> list[Act]:
        if not member.ranks_started:
            return []
        member.ranks_started = False
        return [Tell(self._present())]

    def _present(self) -> Message:
        """What the driver is told: every node that runs, with its address and ranks."""
        there = sorted(
            (member for member in self._members.values() if member.ranks_started), key=lambda each: each.node_rank
        )
        nodes = [{"node": each.node, "address": each.address, "slots": self.slots[each.node_rank]} for each in there]
        return {"type": "nodes", "nodes": nodes}
