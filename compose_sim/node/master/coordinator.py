"""Track the nodes of a run and decide which messages they get, without sockets or a clock.

A coordinator receives what happened to a peer (a connection) with the time on the clock of the machine
(`machine_clock.py`), and returns actions to perform in order.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Generic, TypeVar

from ..shared.master_protocol import Message

_LONGEST_STEP_SECONDS = 0.5  # the server wakes up twice as often, unless this process gets no CPU time
_WINDOW_SECONDS = 1.0
_IDLE_CPUS = 0.5  # with this much unused, every process that wants to run does
_CROWD = 16  # processes that want to run, for each CPU; with more of them, nodes cannot speak in time
_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY_SECONDS, _IDLE_SECONDS = 30.0, 5.0


@dataclass(frozen=True)
class Patience:
    """Seconds of silence after which a node is lost: at any time, and while the machine was idle throughout."""

    busy: float = _BUSY_SECONDS
    idle: float = _BUSY_SECONDS

    @classmethod
    def of(cls, node_timeout: float | None, *, elastic: bool) -> Patience:
        """Return what `--node-timeout` asks for. By default, elastic runs go on without a node early: it may come back."""
        if node_timeout is not None:
            return cls(node_timeout, node_timeout)
        return cls(_BUSY_SECONDS, _IDLE_SECONDS if elastic else _BUSY_SECONDS)


class MachineClock:
    """
    A clock that stops while this process gets no CPU time, and is slow while too many processes want some.

    `now` is its time, and `idle_since` when the machine was last busy.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")) -> None:
        """Start at 0. On a machine that does not report how much CPU time is unused, the machine counts as busy."""
        self._monotonic, self._proc, self._cpus = monotonic, proc, os.cpu_count() or 1
        self._read_at = self._sampled_at = monotonic()
        self._unused = self._unused_seconds()
        self.now = self.idle_since = 0.0

    def advance(self) -> None:
        """Must be called at least every `_LONGEST_STEP_SECONDS`; time beyond that does not count."""
        read_at = self._monotonic()
        self.now += min(read_at - self._read_at, _LONGEST_STEP_SECONDS) / max(1.0, self._crowd() / _CROWD)
        self._read_at = read_at
        passed = read_at - self._sampled_at
        if passed >= _WINDOW_SECONDS:
            before, self._unused, self._sampled_at = self._unused, self._unused_seconds(), read_at
            if self._unused - before < _IDLE_CPUS * passed:
                self.idle_since = self.now

    def _crowd(self) -> float:
        """Return how many processes want to run for each CPU; 0 if unknown."""
        try:
            return int((self._proc / "loadavg").read_text().split()[3].partition("/")[0]) / self._cpus
        except (OSError, ValueError, IndexError):
            return 0.0

    def _unused_seconds(self) -> float:
        """Return for how long CPUs had nothing to do since the start of the machine; processes that wait for disks do not count."""
        try:
            return int((self._proc / "stat").read_text().split(maxsplit=5)[4]) / _TICKS
        except (OSError, ValueError, IndexError):
            return 0.0


_MAX_COUNT = 1 << 16  # of nodes, and of ranks on a node
_OPTIONAL = type(None)
# Message from a node -> its fields -> their types. A message of another type only shows that the node is alive.
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "join": {"node": (str,), "node_rank": (int,), "nproc": (int,), "ready": (bool, _OPTIONAL)},
    "failed": {"rank": (int, _OPTIONAL), "exit_code": (int, _OPTIONAL), "signal": (int, _OPTIONAL)},
}


class Action:
    """Something to be done by the server."""


@dataclass(frozen=True)
class Send(Action):
    """Send `message` to `peer`."""

    peer: int
    message: Message


@dataclass(frozen=True)
class Drop(Action):
    """Close the connection of `peer`."""

    peer: int


@dataclass(frozen=True)
class Emit(Action):
    """Append an event to the master's event log."""

    kind: str
    data: dict[str, Any]


@dataclass
class Member:
    """One connection, and the node at the other end once it has joined."""

    heard: float
    address: str
    node: str = ""
    node_rank: int = -1


AnyMember = TypeVar("AnyMember", bound=Member)


class Coordinator(ABC, Generic[AnyMember]):
    """
    The nodes of one run.

    `absent` returns the nodes that a fault affects at this moment; what happens to them does not count as a failure.
    """

    member_type: type[AnyMember]

    def __init__(self, *, generation: int, absent: Callable[[], frozenset[str]], patience: Patience) -> None:
        self.generation = generation
        self.outcome: bool | None = None  # None while the run continues
        self._absent, self._patience = absent, patience
        self._members: dict[int, AnyMember] = {}
        self._absent_at: dict[str, float] = {}  # when each node was last absent
        self._end: Message = {}  # the message to nodes once the run has ended

    @abstractmethod
    def begin(self) -> list[Action]:
        """Return what to do before any node connects."""

    def connected(self, peer: int, address: str, now: float) -> None:
        self._members[peer] = self.member_type(heard=now, address=address)

    def received(self, peer: int, message: Message, now: float) -> list[Action]:
        """
        Handle a message from a node. A message of an unknown type only shows that the node is alive.

        Raises:
            ValueError: the message is malformed.
        """
        _check(message)
        member = self._members.get(peer)
        if member is None:
            return []
        member.heard = now
        return (
            self._join(peer, member, message, now) if message["type"] == "join" else self._handle(peer, member, message)
        )

    def gone(self, peer: int, reason: str) -> list[Action]:
        """Handle the end of a connection."""
        member = self._members.pop(peer, None)
        return [] if member is None else self._left(member, reason)

    def tick(self, now: float, idle_since: float = 0.0) -> list[Action]:
        """Drop silent nodes; the machine has been idle since `idle_since`."""
        self._absent_at.update(dict.fromkeys(self._absent(), now))
        actions: list[Action] = []
        for peer, member in list(self._members.items()):
            limits = ((self._patience.idle, max(member.heard, idle_since)), (self._patience.busy, member.heard))
            over = next((limit for limit, since in limits if now - since > limit), None)
            if over is not None:
                actions += [Drop(peer), *self.gone(peer, f"no sign of life for {over:g} s")]
        return actions

    @property
    def finished(self) -> bool:
        """Whether the run has ended and every node has left."""
        return self.outcome is not None and not self._members

    @abstractmethod
    def _joined(self, peer: int, member: AnyMember, message: Message) -> list[Action]:
        """Handle a node that has joined while the run continues."""

    @abstractmethod
    def _handle(self, peer: int, member: AnyMember, message: Message) -> list[Action]:
        """Handle any message other than `join`."""

    @abstractmethod
    def _left(self, member: AnyMember, reason: str) -> list[Action]:
        """Handle a member that has been removed."""

    def _join(self, peer: int, member: AnyMember, message: Message, now: float) -> list[Action]:
        if self.outcome is not None:
            return [Send(peer, self._end)]
        node = message["node"]
        actions: list[Action] = []
        others = [other for other, each in self._members.items() if each.node == node and other != peer]
        here = {each.node for each in self._members.values() if each.address == member.address and each.node}
        # A rank knows the secret, but a container has one address: it cannot take the name of a node that is there.
        if here - {node} and any(self._members[other].address != member.address for other in others):
            raise ValueError(message)
        for other in others:
            actions += [Drop(other), *self._replaced(other, now)]
        member.node, member.node_rank = node, message["node_rank"]
        joined = {"node": node, "node_rank": member.node_rank, "nproc": message["nproc"]}
        return [*actions, Emit("node-joined", joined), *self._joined(peer, member, message)]

    def _replaced(self, peer: int, now: float) -> list[Action]:
        """Handle a connection whose node has just joined over another one."""
        return self.gone(peer, "started again")

    def _absent_since(self, moment: float) -> frozenset[str]:
        """Return the nodes that are absent, or were after this moment: a fault may end before the effect is noticed."""
        return self._absent() | {node for node, at in self._absent_at.items() if at >= moment}

    def _finish(self, passed: bool, reason: str, *, node: str | None = None, **facts: Any) -> list[Action]:
        """End the run for all nodes."""
        self.outcome = passed
        self._end = {"type": "end"} if passed else {"type": "stop", "reason": reason, "node": node}
        ended = Emit("ended", {"passed": passed, "reason": reason, "node": node, **facts})
        return [ended, *(Send(peer, self._end) for peer, member in self._members.items() if member.node)]


def _check(message: Message) -> None:
    fields = _FIELDS.get(message["type"], {})
    if any(type(message.get(name)) not in types for name, types in fields.items()):
        raise ValueError(message)
    if message["type"] == "join" and not (0 <= message["node_rank"] < _MAX_COUNT and 0 < message["nproc"] < _MAX_COUNT):
        raise ValueError(message)
