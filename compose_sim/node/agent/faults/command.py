"""Define commands, how they are handled, and what a handler knows about the node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...shared import roles
from ...shared.event_log import EventLog

POLL_SECONDS = 0.02
SETTLE_POLLS = 10  # a resource is taken this often: a rank may give back what it held for a moment at the first time
START_SECONDS = 6.0  # for a rank to start
TIMEOUT_SECONDS = 8.0  # composesim gives up after 20


class ExecutionError(Exception):
    """A command cannot be executed on this node; the message says why."""


class RankView(Protocol):
    """What a handler knows about a rank: `pid` is 0 until it has started."""

    rank: int
    pid: int
    ended: bool


@dataclass(frozen=True)
class Command:
    """One command; `values` are the arguments of the handler."""

    id: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class NodeContext:
    """What handlers know about the node, and what they keep there until a command is undone."""

    events: EventLog
    contained: bool = False  # whether the node is alone in a container
    grace_seconds: float = 2.0  # between SIGTERM and SIGKILL, when the ranks are stopped
    ranks: Sequence[RankView] = ()
    held: dict[str, Any] = field(default_factory=dict)  # by the id of the command

    def running_rank(self, command: Command) -> Generator[float, None, RankView]:
        """Wait for the rank that a command is for, since ranks may be about to start again; ExecutionError if none comes."""
        number, deadline = command.values["rank"], time.monotonic() + START_SECONDS
        while True:
            found = next((each for each in self.ranks if each.rank == number and each.pid and not each.ended), None)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise ExecutionError(f"rank {number} is not running on {self.events.node}")
            yield POLL_SECONDS

    def start(self, command: Command, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of another role as a child of the agent, and hold it until `end`."""
        argv = roles.command(role, str(os.getpid()), *arguments, options=("-I",))
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self.held[command.id] = process
        return process

    def end(self, command: Command) -> None:
        """End the process that `start` started, if it is still running."""
        process = self.held.pop(command.id, None)
        if process is not None:
            process.kill()
            process.wait()
            process.stdout.close()


@dataclass(frozen=True)
class CommandHandler:
    """
    How commands of one name are executed and undone. Both functions raise ExecutionError if that is not possible.

    `execute` yields seconds to wait, because the agent must not block. `undo` also runs if the command was executed only
    partly, or by an earlier agent of this node.
    """

    execute: Callable[[Command, NodeContext], Generator[float, None, None]]
    undo: Callable[[Command, NodeContext], None]
    outlives_node: bool = False  # then the agent undoes it when it leaves


def wait_until(
    condition: Callable[[], object], why: str, *, deadline: float, rank: RankView | None = None
) -> Generator[float, None, None]:
    """Wait for a condition; raise ExecutionError if the deadline passes, or the rank ends, before it holds."""
    while not condition():
        if (rank is not None and rank.ended) or time.monotonic() > deadline:
            raise ExecutionError(why)
        yield POLL_SECONDS
