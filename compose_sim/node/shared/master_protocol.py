"""Exchange messages between the master and its nodes: JSON lines, in both directions, over one TCP connection per node."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

Message = dict[str, Any]

HEARTBEAT_SECONDS = 1.0
UNREACHABLE_SECONDS = 5.0  # a machine that acknowledges nothing for this long is cut off
CLOSED = "connection closed"  # the reason if the other side closed the connection
_LONGEST_LINE = 1 << 20
_MAX_AT_ONCE = 1 << 20  # bytes; a peer that never stops sending must not keep us from the others


class Connection:
    """One end of a connection, which never blocks. `closed` is the reason why it has ended, or "" while it is open."""

    _longest_line = _LONGEST_LINE

    def __init__(self, link: socket.socket) -> None:
        """Take over `link`."""
        link.setblocking(False)
        if link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # If the network was cut, the kernel ends the connection. As long as the peer's kernel answers, a silent peer is only busy.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(2 * HEARTBEAT_SECONDS))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREACHABLE_SECONDS * 1000))
        self._link = link
        self._unread = b""
        self.closed = ""

    def fileno(self) -> int:
        return self._link.fileno()

    def send(self, message: Message) -> None:
        """Send one message. A peer with a full buffer has stopped reading, and counts as lost."""
        self._send(json.dumps(message).encode())

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; set `closed` if the connection has ended or a message is malformed."""
        received = 0
        while not self.closed and received < _MAX_AT_ONCE:
            try:
                data = self._link.recv(65536)
            except BlockingIOError:
                break
            except OSError as error:
                self.closed = f"connection lost ({error.strerror})"
                break
            if not data:
                self.closed = CLOSED
            received += len(data)
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        messages = self._parse(lines)
        if len(self._unread) > self._longest_line:
            self.reject(self._unread[:80])
            self._unread = b""
        return messages

    def reject(self, message: object) -> None:
        """Set `closed` because of this message."""
        self.closed = f"unexpected message {message!r:.80}"

    def close(self) -> None:
        self.closed = self.closed or "closed by this side"
        self._link.close()

    def _send(self, line: bytes) -> None:
        if self.closed:
            return
        line += b"\n"
        try:
            if self._link.send(line) < len(line):
                self.closed = "it stopped reading"
        except BlockingIOError:
            self.closed = "it stopped reading"
        except OSError as error:
            self.closed = f"connection lost ({error.strerror})"

    def _parse(self, lines: list[bytes]) -> list[Message]:
        messages = []
        for line in lines:
            message = self._message(line)
            if message is None:
                self.reject(line)
                break
            messages.append(message)
        return messages

    def _message(self, line: bytes) -> Message | None:
        """Return the message on a line, or None if it is malformed."""
        try:
            message = json.loads(line) if len(line) <= _LONGEST_LINE else None
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) and isinstance(message.get("type"), str) else None


_RETRY_SECONDS = 0.05


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """Connect over IPv4, and retry until the host is known and listens; raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError):
            return socket.create_connection((socket.gethostbyname(host), port), timeout=left)
        time.sleep(_RETRY_SECONDS)
    raise TimeoutError(f"nothing answers at {host}:{port} after {timeout:.0f} s")
