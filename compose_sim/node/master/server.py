"""Serve the connections of all nodes: pass what happens on them to a coordinator, and perform the actions it returns."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..shared.event_log import EventLog
from ..shared.master_protocol import Connection
from .coordinator import Action, Coordinator, Drop, Emit, Send
from .machine_clock import MachineClock

TICK_SECONDS = 0.25


class NodeServer:
    """The sockets of one run's master."""

    def __init__(self, coordinator: Coordinator[Any], listener: socket.socket, events: EventLog) -> None:
        """Listen on `listener`."""
        self._coordinator = coordinator
        self._listener = listener
        self._events = events
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._next_peer = 0
        self._clock = MachineClock()

    def run(self) -> int:
        """Serve until the run has ended and the last node has left; return 0 if the run passed, else 1."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._events.emit("master-started", port=self._listener.getsockname()[1], pid=os.getpid())
        self._perform(self._coordinator.begin())
        while not self._coordinator.finished:
            for key, _ in self._selector.select(TICK_SECONDS):
                key.data()
            # After reading: if this process was suspended, what arrived in the meantime is not silence.
            self._clock.advance()
            self._perform(self._coordinator.tick(self._clock.now, self._clock.idle_since))
        return 0 if self._coordinator.outcome else 1

    def _accept(self) -> None:
        link, (address, *_) = self._listener.accept()
        peer, self._next_peer = self._next_peer, self._next_peer + 1
        self._connections[peer] = Connection(link)
        self._selector.register(self._connections[peer], selectors.EVENT_READ, partial(self._read, peer))
        self._coordinator.connected(peer, address, self._clock.now)

    def _read(self, peer: int) -> None:
        connection = self._connections.get(peer)
        if connection is None:  # dropped earlier in this iteration
            return
        for message in connection.receive():
            try:
                actions = self._coordinator.received(peer, message, self._clock.now)
            except (KeyError, TypeError, ValueError):
                connection.reject(message)
                break
            self._perform(actions)
        if connection.closed:
            reason = connection.closed
            self._drop(peer)
            self._perform(self._coordinator.gone(peer, reason))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Emit):
                self._events.bind(generation=self._coordinator.generation).emit(action.kind, **action.data)
            elif isinstance(action, Drop):
                self._drop(action.peer)
            elif not isinstance(action, Send):
                self._perform_other(action)
            elif action.peer in self._connections:
                self._connections[action.peer].send(action.message)

    def _perform_other(self, action: Action) -> None:
        """Perform an action that only one kind of coordinator returns."""
        raise TypeError(action)

    def _drop(self, peer: int) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()


class PortTaken(RuntimeError):
    """Another process listens on the port."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} is taken")
        self.port = port


def serve(make_server: Callable[[], NodeServer], coordinator: Coordinator[Any], events: EventLog) -> int:
    """Serve a run until it ends, and return the exit code of this process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return make_server().run()
    except (OSError, RuntimeError) as error:
        hint = f". To see which process uses it: ss -ltnp sport = :{error.port}" if isinstance(error, PortTaken) else ""
        print(f"composesim master: {error}{hint}", file=sys.stderr)
        if coordinator.outcome is None:
            events.emit("ended", passed=False, reason=str(error))
        return 1
    except KeyboardInterrupt:
        # Compose may stop all services when the first node leaves (--abort-on-container-exit): the outcome stands.
        return 128 + signal.SIGTERM if coordinator.outcome is None else 0 if coordinator.outcome else 1


def interface_of(host: str) -> str:
    """Return the address to listen on if nodes connect to `host`: loopback if they run on this machine, else "" for all."""
    return "127.0.0.1" if host in ("127.0.0.1", "localhost") else ""


def listen(interface: str, port: int) -> socket.socket:
    """Return a listening socket, on any free port if `port` is 0; raises PortTaken."""
    try:
        return socket.create_server((interface, port), backlog=1024)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortTaken(port) from None


def free_port(interface: str) -> int:
    """Return a port that nothing listens on at this moment."""
    with listen(interface, 0) as listener:
        return int(listener.getsockname()[1])


def absent_nodes(run_folder: Path) -> frozenset[str]:
    """Return the nodes that a fault affects at this moment: composesim keeps a file with the name of each."""
    try:
        return frozenset(path.name for path in (run_folder / "control" / "absent").iterdir())
    except OSError:  # without faults there is no such folder
        return frozenset()
