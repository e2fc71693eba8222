"""Serve the connections of all nodes: pass what happens on them to a coordinator, and perform the actions it returns."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..shared.authentication import AUTHENTICATE_SECONDS, AuthenticatedConnection, read_secret
from ..shared.event_log import EventLog
from ..shared.master_protocol import CLOSED, Message
from ..shared.process import Owners
from .coordinator import Action, Coordinator, Drop, Emit, MachineClock, Send

TICK_SECONDS = 0.25
MAX_STRANGERS = 128  # connections that have not authenticated
_MAX_NOTED = 10  # addresses


@dataclass
class _Peer:
    """One connection, accepted at the time `since`."""

    connection: AuthenticatedConnection
    address: str
    since: float


class NodeServer:
    """The sockets of one run's master."""

    def __init__(self, coordinator: Coordinator[Any], listener: socket.socket, events: EventLog) -> None:
        """Listen on `listener`, for nodes that have the secret of the run of `events`."""
        self._coordinator = coordinator
        self._listener = listener
        self._events = events
        self._secret = read_secret({"COMPOSESIM_DIR": str(events.folder)})
        self._peers: dict[int, _Peer] = {}
        self._strangers: dict[int, _Peer] = {}  # oldest first
        self._noted: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._next_peer = 0
        self._clock = MachineClock()
        self._owners = Owners(events.folder)

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
            self._drop_strangers()
            if self._owners.are_gone():
                raise KeyboardInterrupt  # as after SIGTERM
        for each in self._strangers.values():
            each.connection.close()
        return 0 if self._coordinator.outcome else 1

    def _accept(self) -> None:
        try:
            link, (address, *_) = self._listener.accept()
        except OSError as error:  # it was closed already, or this process has no descriptor left
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._strangers:
                self._drop_stranger(next(iter(self._strangers)), "too many connections")
            return
        peer, self._next_peer = self._next_peer, self._next_peer + 1
        connection = AuthenticatedConnection(link, self._secret, is_master=True)
        self._strangers[peer] = _Peer(connection, address, self._clock.now)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._read_stranger, peer))
        if len(self._strangers) > MAX_STRANGERS:
            self._drop_stranger(next(iter(self._strangers)), "too many connections")

    def _read_stranger(self, peer: int) -> None:
        stranger = self._strangers.get(peer)
        if stranger is None:  # dropped earlier in this iteration
            return
        messages = stranger.connection.receive()
        if stranger.connection.authenticated:
            self._peers[peer] = self._strangers.pop(peer)
            self._selector.modify(stranger.connection, selectors.EVENT_READ, partial(self._read, peer))
            self._coordinator.connected(peer, stranger.address, self._clock.now)
            self._handle(peer, messages)
        elif stranger.connection.closed:
            self._drop_stranger(peer, stranger.connection.closed)

    def _drop_strangers(self) -> None:
        """Drop connections that have not authenticated in time."""
        oldest = self._clock.now - AUTHENTICATE_SECONDS
        for peer in [peer for peer, each in self._strangers.items() if each.since < oldest]:
            self._drop_stranger(peer, f"not authenticated after {AUTHENTICATE_SECONDS:g} s")

    def _drop_stranger(self, peer: int, reason: str) -> None:
        stranger = self._strangers.pop(peer)
        self._selector.unregister(stranger.connection)
        stranger.connection.close()
        if reason != CLOSED:
            self._note_refused(stranger.address, reason)

    def _note_refused(self, address: str, reason: str) -> None:
        """Report the first refused connection of an address."""
        if address not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add(address)
            self._events.emit("connection-refused", address=address, reason=reason)
            print(f"composesim master: refused a connection from {address}: {reason}", file=sys.stderr, flush=True)

    def _read(self, peer: int) -> None:
        if peer in self._peers:  # else dropped earlier in this iteration
            self._handle(peer, self._peers[peer].connection.receive())

    def _handle(self, peer: int, messages: list[Message]) -> None:
        connection = self._peers[peer].connection
        for message in messages:
            try:
                actions = self._coordinator.received(peer, message, self._clock.now)
            except ValueError:
                connection.reject(message)
                self._note_refused(self._peers[peer].address, connection.closed)
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
            elif action.peer in self._peers:
                self._peers[action.peer].connection.send(action.message)

    def _perform_other(self, action: Action) -> None:
        """Perform an action that only one kind of coordinator returns."""
        raise TypeError(action)

    def _drop(self, peer: int) -> None:
        dropped = self._peers.pop(peer, None)
        if dropped is not None:
            self._selector.unregister(dropped.connection)
            dropped.connection.close()


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
