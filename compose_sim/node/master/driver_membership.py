"""Decide which nodes a driver can use and when the run ends: one program, the driver, controls all nodes.

A node may start its ranks as soon as the driver accepts nodes. It always gets the ranks that were planned for it.
Every change is reported to the driver. Losing a node does not end the run, because the framework handles the loss; the
run ends when the driver does.
"""

from __future__ import annotations

import importlib.util
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

from ..shared import process, roles
from ..shared.event_log import EventLog
from ..shared.master_protocol import Connection, Message
from .coordinator import Action, Coordinator, Emit, Member, Patience, Send

LATE_SECONDS = 5.0


@dataclass(frozen=True)
class StartDriver(Action):
    """Start the driver."""


@dataclass(frozen=True)
class SendDriver(Action):
    """Send `message` to the driver."""

    message: Message


@dataclass
class _Member(Member):
    ranks_started: bool = False


class DriverMembership(Coordinator[_Member]):
    """The nodes of one driver."""

    member_type = _Member

    def __init__(
        self,
        slots: Sequence[int],
        host: str,
        head_port: int,
        absent: Callable[[], frozenset[str]] = frozenset,
        node_timeout: float | None = None,
    ) -> None:
        """
        Expect the nodes with these ranks, in order of their numbers.

        The framework's head listens on `head_port` of `host`.
        """
        super().__init__(generation=0, absent=absent, patience=Patience.of(node_timeout, elastic=True))
        self._slots, self.host, self.head_port = slots, host, head_port
        self._accepts = False
        self._seen: set[str] = set()  # nodes that have ever joined
        self._ended_at: float | None = None
        self._is_late = False  # after the end, nodes that have not joined by now are no longer expected

    def begin(self) -> list[Action]:
        return [StartDriver()]

    def tick(self, now: float, idle_since: float = 0.0) -> list[Action]:
        if self.outcome is not None:
            self._ended_at = now if self._ended_at is None else self._ended_at
            self._is_late = now - self._ended_at > LATE_SECONDS
        return super().tick(now, idle_since)

    def driver_sent(self, message: Message) -> list[Action]:
        """
        Handle `accepting` (nodes may start their ranks) or `ready` (the framework reports that all nodes are there).

        Raises:
            ValueError: the message has another type.
        """
        if message["type"] == "accepting":
            self._accepts = True
            return [action for peer in list(self._members) for action in self._start_ranks(peer)]
        if message["type"] == "ready":
            return [Emit("ready", {key: value for key, value in message.items() if key != "type"})]
        raise ValueError(message["type"])

    def driver_ended(self, code: int) -> list[Action]:
        """End the run with the driver's exit code, or minus the signal that ended it."""
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return self._finish(code == 0, f"the driver {how}", exit_code=code)

    @property
    def finished(self) -> bool:
        """Whether the driver has ended and every node has left. A driver may end while nodes are still starting."""
        nodes_expected = not self._accepts and len(self._seen) < len(self._slots) and not self._is_late
        return super().finished and not nodes_expected

    def _join(self, peer: int, member: _Member, message: Message, now: float) -> list[Action]:
        if message["node_rank"] >= len(self._slots):
            raise ValueError(f"node number {message['node_rank']} was never planned")
        self._seen.add(message["node"])
        return super()._join(peer, member, message, now)

    def _joined(self, peer: int, member: _Member, message: Message) -> list[Action]:
        member.ranks_started = False
        return self._start_ranks(peer)

    def _handle(self, peer: int, member: _Member, message: Message) -> list[Action]:
        if message["type"] not in ("failed", "done") or not member.ranks_started:
            return []
        reason = f"what {member.node} runs ended with exit code {message.get('exit_code') or 0}"
        return [*self._stop_using(member), Send(peer, {"type": "stop", "reason": reason})]

    def _left(self, member: _Member, reason: str) -> list[Action]:
        if not member.node or self.outcome is not None:
            return []
        injected = member.node in self._absent_since(member.heard)
        lost = Emit("node-lost", {"node": member.node, "reason": reason, "injected": injected})
        return [lost, *self._stop_using(member)]

    def _start_ranks(self, peer: int) -> list[Action]:
        member = self._members[peer]
        if not (self._accepts and member.node) or member.ranks_started:
            return []
        member.ranks_started = True
        first_ranks = [0, *accumulate(self._slots)]
        round_ = {
            "type": "round",
            "generation": self.generation,
            "restart_count": 0,
            "max_restarts": 0,
            "world_size": sum(self._slots),
            "group_world_size": len(self._slots),
            "nodes": [f"node-{number}" for number in range(len(self._slots))],
            "nproc": list(self._slots),
            "store_host": self.host,
            "store_port": self.head_port,
            "first_rank": first_ranks[member.node_rank],
            "group_rank": member.node_rank,
        }
        return [Send(peer, round_), self._send_nodes()]

    def _stop_using(self, member: _Member) -> list[Action]:
        if not member.ranks_started:
            return []
        member.ranks_started = False
        return [self._send_nodes()]

    def _send_nodes(self) -> SendDriver:
        """Send the driver every node that runs, with address and ranks."""
        running = [member for member in self._members.values() if member.ranks_started]
        nodes = [
            {"node": each.node, "address": each.address, "slots": self._slots[each.node_rank]}
            for each in sorted(running, key=lambda each: each.node_rank)
        ]
        return SendDriver({"type": "nodes", "nodes": nodes})


SOCKET = "COMPOSESIM_DRIVER_LINK"  # the descriptor of the driver's connection to the master
NODE = "driver"  # the node's name in the events and logs of the driver
MISSING, TOO_OLD, NOT_READY, UNREACHABLE = 90, 91, 92, 93  # exit codes, which recipes explain


@dataclass(frozen=True)
class PresentNode:
    """One node that runs."""

    node: str
    address: str
    slots: int


class MasterConnection:
    """A driver's connection to the master."""

    def __init__(self) -> None:
        """Take over the descriptor from the master; child processes do not inherit it."""
        descriptor = int(os.environ.pop(SOCKET))
        os.set_inheritable(descriptor, False)
        self._connection = Connection(socket.socket(fileno=descriptor))
        self.nodes: tuple[PresentNode, ...] = ()
        self.seen: set[str] = set()  # the names of all nodes that were ever present

    def fileno(self) -> int:
        return self._connection.fileno()

    def accept(self) -> None:
        """Let nodes start their ranks, because the framework's head can be reached."""
        self._connection.send({"type": "accepting"})

    def ready(self, **facts: object) -> None:
        """Report that the framework has all nodes; `facts` become part of the event."""
        self._connection.send({"type": "ready", **facts})

    def update(self, timeout: float | None = None) -> bool:
        """Wait until the nodes change, and update `nodes`; return False after the timeout."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            if not selector.select(timeout):
                return False
        messages: list[Message] = self._connection.receive()
        for message in messages:
            if message["type"] == "nodes":
                self.nodes = tuple(PresentNode(**node) for node in message["nodes"])
                self.seen |= {node.node for node in self.nodes}
        if self._connection.closed:
            sys.exit(f"composesim driver: lost the connection to the master: {self._connection.closed}")
        return bool(messages)


def fail(code: int, message: str, hint: str = "") -> NoReturn:
    """End the driver, and report the cause with a command to try."""
    print(f"composesim driver: {message}" + (f"\nTry: {hint}" if hint else ""), file=sys.stderr, flush=True)
    EventLog.from_environment(os.environ).emit("exception", type="", message=message, traceback="", hint=hint)
    sys.exit(code)


def run_script(program: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the user's program, `[-m] SCRIPT ARGS...`, in a process that reports how it ends (the role `driver-script`)."""
    command = roles.command("driver-script", *program)
    return subprocess.Popen(command, env={**os.environ, **environment})


def exit_like(child: subprocess.Popen[bytes]) -> NoReturn:
    """Wait for the child, pass on the signals we receive, and exit as it does."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: child.send_signal(received))
    sys.exit(process.shell_status(child.wait()))


def seconds_until(deadline: float) -> float:
    """Return the seconds left until a moment of the monotonic clock, or 0 if it has passed."""
    return max(0.0, deadline - time.monotonic())


class StartError(Exception):
    """A framework cannot be started here. Holds an exit code and a command to try."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


def require(package: str, least: str, *distributions: str, hint: str) -> str:
    """
    Return the installed version of a package, not imported here, or "" if it was not installed as one of these distributions.

    Raises:
        StartError: the package is missing, or older than `least`.
    """
    version = next(filter(None, map(_installed_version, distributions)), "")
    if not version and importlib.util.find_spec(package) is None:
        raise StartError(MISSING, f"{package} is not installed for {sys.executable}", hint)
    if version and _numbers(version) < _numbers(least):
        raise StartError(TOO_OLD, f"{package} {version} is too old: {least} or newer is needed", hint)
    return version


def _installed_version(distribution: str) -> str:
    from importlib import metadata  # takes time, and the master needs none of it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers to compare versions by, without a local version (after `+`)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
