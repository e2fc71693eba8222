"""What does a driver need of composesim? To hear which nodes are there, to say how far it is, and to run the person's script.

For the programs of this folder that the head starts (head.py), and for recipes of others: one JSON line a message, both ways.
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

from ..shared import roles
from ..shared.event_log import EventLog
from ..shared.master_protocol import Connection, Message

LINK = "COMPOSESIM_DRIVER_LINK"  # the descriptor of the driver's link to the head
NODE = "driver"  # whose events and logs a driver's are
MISSING, TOO_OLD, NOT_READY, UNREACHABLE = 90, 91, 92, 93  # exit codes of drivers; recipes say what they mean


@dataclass(frozen=True)
class Present:
    """One node that runs."""

    node: str
    address: str
    slots: int


class Link:
    """A driver's link to its head."""

    def __init__(self) -> None:
        """Take over the descriptor that the head handed us; nobody whom we start inherits it."""
        descriptor = int(os.environ.pop(LINK))
        os.set_inheritable(descriptor, False)
        self._connection = Connection(socket.socket(fileno=descriptor))
        self.nodes: tuple[Present, ...] = ()
        self.known: set[str] = set()  # the names of all that ever were there, also of one that came and went unheard

    def fileno(self) -> int:
        return self._connection.fileno()

    def accept(self) -> None:
        """From now on nodes may start what they run: the head can be reached."""
        self._connection.send({"type": "accepting"})

    def ready(self, **facts: object) -> None:
        """The framework says that all nodes are there; `facts` go into the event."""
        self._connection.send({"type": "ready", **facts})

    def hear(self, seconds: float | None = None) -> bool:
        """Wait at most so long for a change, and know the nodes as they are now; False where nothing came."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            if not selector.select(seconds):
                return False
        messages: list[Message] = self._connection.receive()
        for message in messages:
            if message["type"] == "nodes":
                self.nodes = tuple(Present(**node) for node in message["nodes"])
                self.known |= {node.node for node in self.nodes}
        if self._connection.closed:
            sys.exit(f"composesim driver: the master has ended: {self._connection.closed}")
        return bool(messages)


def fail(code: int, message: str, hint: str = "") -> NoReturn:
    """End the driver, with the cause of the run in words, and a command to type next."""
    print(f"composesim driver: {message}" + (f"\nTry: {hint}" if hint else ""), file=sys.stderr, flush=True)
    EventLog.from_environment(os.environ).emit("exception", type="", message=message, traceback="", hint=hint)
    sys.exit(code)


def run_script(program: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the person's program, `[-m] SCRIPT ARGS...`, as a driver runs it: how it ends is told as events (driver-script)."""
    command = roles.command("driver-script", *program)
    return subprocess.Popen(command, env={**os.environ, **environment})


def end_as(process: subprocess.Popen[bytes]) -> NoReturn:
    """Wait for the program, passing on what we are told, and end as it ends."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: process.send_signal(received))
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def before(deadline: float) -> float:
    """Seconds that are left until a moment of the monotonic clock, none where it has passed."""
    return max(0.0, deadline - time.monotonic())
