"""How does a node stay in touch with the master? By a connection that it makes anew, again and again, when it breaks.

A node that was frozen, or cut off from the network for a while, finds its connection closed: it is no member any more, but may join
again. How long it tries depends on what it hears: a master that refuses, or whose name is unknown, has ended; silence may end.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Protocol

from ..shared.master_protocol import SILENCE_SECONDS, Connection, Message

# Seconds to try, by what is heard. At first the master may not be up, nor its name known.
_AT_FIRST = {"refused": 120.0, "unknown": 120.0, "silent": 120.0}
_AGAIN = {"refused": 3.0, "unknown": 10.0, "silent": 600.0}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_NEVER = float("inf")


class Member(Protocol):
    """Who is told what becomes of the connection."""

    def connected(self) -> None:
        """It stands."""

    def heard(self, message: Message) -> None:
        """The master has sent a message."""

    def disconnected(self, reason: str) -> None:
        """It has broken; nothing is done about it before `dial`."""

    def unreachable(self, reason: str) -> None:
        """It could not be made, and is given up."""


class Membership:
    """One node's connection to the master. `wake_at` says when it wants to `go_on`, on the monotonic clock."""

    def __init__(self, address: str, selector: selectors.BaseSelector, member: Member) -> None:
        """Nothing happens before `dial`; `address` is HOST:PORT."""
        self._address, self._selector, self._member = address, selector, member
        self._connection: Connection | None = None
        self._attempt: socket.socket | None = None
        self._began = 0.0
        self._pause, self._attempts = _FIRST_PAUSE, 0
        self._patience: Mapping[str, float] = _AT_FIRST
        self.wake_at = _NEVER

    def dial(self) -> None:
        """Connect, however often it takes."""
        self._began, self._pause = time.monotonic(), _FIRST_PAUSE
        self._try()

    def send(self, message: Message) -> None:
        """Send one message, where there is a connection; what breaks it is heard of later."""
        if self._connection is not None:
            self._connection.send(message)

    def go_on(self) -> None:
        """Do what is due: try again, or give up an attempt that nobody answers."""
        if time.monotonic() < self.wake_at:
            return
        if self._attempt is None:
            self._try()
        else:
            self._end_attempt().close()
            self._failed("silent", "timed out")

    def close(self) -> None:
        """Hang up, and try no more."""
        self.wake_at = _NEVER
        if self._attempt is not None:
            self._end_attempt().close()
        if self._connection is not None:
            self._hang_up(self._connection)

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
        self.wake_at = time.monotonic() + SILENCE_SECONDS
        if error_number not in (0, errno.EINPROGRESS):
            self._answered(error_number)

    def _answered(self, error_number: int = 0) -> None:
        if self._attempt is None:  # given up a moment ago, in the same turn
            return
        link = self._end_attempt()
        error_number = error_number or link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error_number:
            link.close()
            self._failed("refused" if error_number == errno.ECONNREFUSED else "silent", os.strerror(error_number))
            return
        self._connection = Connection(link)
        self._selector.register(self._connection, selectors.EVENT_READ, self._hear)
        self._patience, self.wake_at = _AGAIN, _NEVER
        self._member.connected()

    def _end_attempt(self) -> socket.socket:
        assert self._attempt is not None
        link, self._attempt = self._attempt, None
        self._selector.unregister(link)
        return link

    def _failed(self, what: str, reason: str) -> None:
        now, patience = time.monotonic(), self._patience[what]
        if now + self._pause > self._began + patience:
            self.wake_at = _NEVER
            self._member.unreachable(f"no answer from the master at {self._address} in {patience:.0f} s: {reason}")
            return
        self.wake_at = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _hear(self) -> None:
        connection = self._connection
        if connection is None:  # hung up a moment ago, in the same turn
            return
        for message in connection.receive():
            self._member.heard(message)
        if connection.closed and connection is self._connection:
            reason = connection.closed
            self._hang_up(connection)
            self._member.disconnected(reason)

    def _hang_up(self, connection: Connection) -> None:
        self._connection = None
        self._selector.unregister(connection)
        connection.close()
