"""Connect a driver to the master: receive the nodes, report progress, and run the user's script.

Drivers in `frameworks/` use this module; drivers in other packages send the same JSON lines themselves (docs/recipes.md).
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ..shared import process, roles
from ..shared.event_log import EventLog
from ..shared.master_protocol import Connection, Message

SOCKET = "COMPOSESIM_DRIVER_LINK"  # the descriptor of the driver's connection to the master
NODE = "driver"  # the node's name in the events and logs of the driver
NOT_READY, UNREACHABLE = 92, 93  # exit codes, which recipes explain, as those in frameworks/installed.py


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
