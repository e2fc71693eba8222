"""How does the master hear of its nodes? By a connection each: what happens to it is told to a council, whose acts are done."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..shared.decisions import Act, Council, Drop, Note, Send
from ..shared.event_log import EventLog
from ..shared.master_protocol import Connection

TICK_SECONDS = 0.25


class Nodes:
    """The connections of all nodes: what happens to them is told to a council, and what it decides is done."""

    def __init__(self, council: Council, listener: socket.socket, events: EventLog) -> None:
        """Listen on `listener`."""
        self._council = council
        self._listener = listener
        self._events = events
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._next_peer = 0

    def run(self) -> int:
        """Serve until the run has ended and the last node has left. 0: it went well."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._events.emit("master-started", port=self._listener.getsockname()[1], pid=os.getpid())
        self._perform(self._council.begin())
        while not self._council.finished:
            for key, _ in self._selector.select(TICK_SECONDS):
                key.data()
            # After reading: what came in while this process itself was held up is not silence.
            self._perform(self._council.tick(time.monotonic()))
        return 0 if self._council.outcome else 1

    def _accept(self) -> None:
        link, (address, *_) = self._listener.accept()
        peer, self._next_peer = self._next_peer, self._next_peer + 1
        self._connections[peer] = Connection(link)
        self._selector.register(self._connections[peer], selectors.EVENT_READ, partial(self._read, peer))
        self._perform(self._council.connected(peer, address, time.monotonic()))

    def _read(self, peer: int) -> None:
        connection = self._connections.get(peer)
        if connection is None:  # dropped a moment ago, in the same turn
            return
        for message in connection.receive():
            try:
                acts = self._council.received(peer, message, time.monotonic())
            except (KeyError, TypeError, ValueError):
                connection.closed = f"it does not speak our protocol: {message!r:.80}"
                break
            self._perform(acts)
        if connection.closed:
            self._lose(peer, connection.closed)

    def _lose(self, peer: int, reason: str) -> None:
        self._drop(peer)
        self._perform(self._council.gone(peer, reason, time.monotonic()))

    def _perform(self, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, Note):
                self._events.bind(generation=self._council.generation).emit(act.kind, **act.data)
            elif isinstance(act, Drop):
                self._drop(act.peer)
            elif not isinstance(act, Send):
                self._perform_own(act)
            elif act.peer in self._connections:
                self._connections[act.peer].send(act.message)

    def _perform_own(self, act: Act) -> None:
        """An act that only some councils ask for."""
        raise TypeError(act)

    def _drop(self, peer: int) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()


class PortTaken(RuntimeError):
    """Another process listens where we were told to."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} is taken")
        self.port = port


def serve(make: Callable[[], Nodes], council: Council, events: EventLog) -> int:
    """Make the sockets of a run's master and serve the run, whatever ends it; the exit code of this process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return make().run()
    except (OSError, RuntimeError) as error:
        hint = f": `ss -ltnp sport = :{error.port}` shows by whom" if isinstance(error, PortTaken) else ""
        print(f"composesim master: {error}{hint}", file=sys.stderr)
        if council.outcome is None:
            events.emit("ended", passed=False, reason=str(error))
        return 1
    except KeyboardInterrupt:
        # Compose may end all services when the first node leaves (--abort-on-container-exit): the outcome stands.
        return 128 + signal.SIGTERM if council.outcome is None else 0 if council.outcome else 1


def interface_of(host: str) -> str:
    """The address to listen on where nodes know us by this name; "" for all: a run on this machine alone is nobody else's business."""
    return "127.0.0.1" if host in ("127.0.0.1", "localhost") else ""


def listen(interface: str, port: int) -> socket.socket:
    """A socket that listens there, on any port where it is 0; PortTaken where somebody else does."""
    try:
        return socket.create_server((interface, port), backlog=1024)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortTaken(port) from None


def free_port(interface: str) -> int:
    """A port on which nobody listens at this moment."""
    with listen(interface, 0) as listener:
        return int(listener.getsockname()[1])


def marked(folder: Path) -> frozenset[str]:
    """Nodes that something is done to on purpose at this moment: composesim keeps a file of the name of each."""
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:  # there is no such folder where nothing can be done to nodes
        return frozenset()
