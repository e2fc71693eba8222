"""Keep a node connected to the master, and reconnect when the connection breaks.

A node that was frozen, or cut off from the network for a while, finds its connection closed. It is no longer part of the
round, but may join again. How long it retries depends on the failure: a master that refuses connections or whose name
is unknown has ended, but one that does not answer may come back.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Protocol

from ..shared.authentication import AUTHENTICATE_SECONDS, AuthenticatedConnection
from ..shared.master_protocol import UNREACHABLE_SECONDS, Message

# Seconds to try, by failure. At first the master may not run yet, and its name may be unknown.
_FIRST_TIME = {"refused": 120.0, "unknown": 120.0, "silent": 120.0}
_RECONNECT = {"refused": 3.0, "unknown": 10.0, "silent": 600.0}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_NEVER = float("inf")


class MasterListener(Protocol):
    """Receives what happens on the connection."""

    def connected(self) -> None:
        """The connection is open, and the master has the run's secret."""

    def received(self, message: Message) -> None:
        """The master has sent a message."""

    def disconnected(self, reason: str) -> None:
        """The connection has ended; call `connect` to reconnect."""

    def unreachable(self, reason: str) -> None:
        """No connection could be made, and no further attempt will be."""


class MasterClient:
    """One node's connection to the master. Call `poll` at `wake_at`, on the monotonic clock, at the latest."""

    def __init__(self, address: str, secret: bytes, selector: selectors.BaseSelector, listener: MasterListener) -> None:
        """Do nothing before `connect`; `address` is HOST:PORT."""
        self._address, self._secret, self._selector, self._listener = address, secret, selector, listener
        self._connection: AuthenticatedConnection | None = None
        self._attempt: socket.socket | None = None
        self._began = 0.0
        self._pause, self._attempts = _FIRST_PAUSE, 0
        self._patience: Mapping[str, float] = _FIRST_TIME
        self.wake_at = _NEVER

    def connect(self) -> None:
        """Start to connect, with as many attempts as needed."""
        self._began, self._pause = time.monotonic(), _FIRST_PAUSE
        self._try()

    def send(self, message: Message) -> None:
        """Send one message if there is a connection; a failure is reported later."""
        if self._connection is not None and self._connection.authenticated:
            self._connection.send(message)

    def poll(self) -> None:
        """Start another attempt if one is due, or give up one that gets no answer."""
        if time.monotonic() < self.wake_at:
            return
        if self._connection is not None:  # it has not authenticated in time
            self._disconnect(self._connection)
        elif self._attempt is None:
            self._try()
            return
        else:
            self._end_attempt().close()
        self._failed("silent", "timed out")

    def close(self) -> None:
        """Close the connection, and make no further attempt."""
        self.wake_at = _NEVER
        if self._attempt is not None:
            self._end_attempt().close()
        if self._connection is not None:
            self._disconnect(self._connection)

    def _try(self) -> None:
        host, _, port = self._address.rpartition(":")
        try:
            places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            self._failed("unknown", error.strerror or str(error))
            return
        family, kind, protocol, _, place = places[self._attempts % len(places)]
        self._attempts += 1
        self._attempt = socket.socket(family, kind, protocol)
        self._attempt.setblocking(False)
        error_number = self._attempt.connect_ex(place)
        self._selector.register(self._attempt, selectors.EVENT_WRITE, self._answered)
        self.wake_at = time.monotonic() + UNREACHABLE_SECONDS
        if error_number not in (0, errno.EINPROGRESS):
            self._answered(error_number)

    def _answered(self, error_number: int = 0) -> None:
        if self._attempt is None:  # given up earlier in this iteration
            return
        link = self._end_attempt()
        error_number = error_number or link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error_number:
            link.close()
            self._failed("refused" if error_number == errno.ECONNREFUSED else "silent", os.strerror(error_number))
            return
        self._connection = AuthenticatedConnection(link, self._secret, is_master=False)
        self._selector.register(self._connection, selectors.EVENT_READ, self._read)
        self.wake_at = time.monotonic() + AUTHENTICATE_SECONDS

    def _end_attempt(self) -> socket.socket:
        assert self._attempt is not None
        link, self._attempt = self._attempt, None
        self._selector.unregister(link)
        return link

    def _failed(self, what: str, reason: str) -> None:
        now, patience = time.monotonic(), self._patience[what]
        if now + self._pause > self._began + patience:
            self.wake_at = _NEVER
            self._listener.unreachable(f"cannot reach the master at {self._address} after {patience:.0f} s: {reason}")
            return
        self.wake_at = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _read(self) -> None:
        connection = self._connection
        if connection is None:  # closed earlier in this iteration
            return
        was_authenticated = connection.authenticated
        messages = connection.receive()
        if connection.authenticated and not was_authenticated:
            self._patience, self.wake_at = _RECONNECT, _NEVER
            self._listener.connected()
        for message in messages:
            self._listener.received(message)
        if not connection.closed or connection is not self._connection:
            return
        reason = connection.closed
        self._disconnect(connection)
        if connection.authenticated:
            self._listener.disconnected(reason)
        else:
            self._failed("unknown", reason)  # such as the master of another run, which now has this port

    def _disconnect(self, connection: AuthenticatedConnection) -> None:
        self._connection = None
        self._selector.unregister(connection)
        connection.close()
