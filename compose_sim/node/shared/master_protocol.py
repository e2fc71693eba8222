"""How do master and nodes speak? JSON lines, both ways, over one TCP connection a node."""

from __future__ import annotations

import json
import socket
from typing import Any

Message = dict[str, Any]

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 5.0  # without a byte for so long, the other side counts as gone
OVER = "connection closed"  # why a connection has ended that the other side has closed
_LONGEST_LINE = 1 << 20


class Connection:
    """One end of a connection. Never blocks; `closed` says why it has ended, or is empty while it lives."""

    def __init__(self, link: socket.socket) -> None:
        """Take over `link`."""
        link.setblocking(False)
        if link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer that vanished without a word (a cut network) is noticed when our own bytes stay unanswered.
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_SECONDS * 1000))
        self._link = link
        self._unread = b""
        self.closed = ""

    def fileno(self) -> int:
        return self._link.fileno()

    def send(self, message: Message) -> None:
        """Send one message. A peer whose buffer is full has stopped reading, and is given up."""
        if self.closed:
            return
        line = json.dumps(message).encode() + b"\n"
        try:
            if self._link.send(line) < len(line):
                self.closed = "it stopped reading"
        except BlockingIOError:
            self.closed = "it stopped reading"
        except OSError as error:
            self.closed = f"connection lost ({error.strerror})"

    def receive(self) -> list[Message]:
        """All messages that have arrived; sets `closed` at the end of the connection or when it carries something else."""
        while not self.closed:
            try:
                data = self._link.recv(65536)
            except BlockingIOError:
                break
            except OSError as error:
                self.closed = f"connection lost ({error.strerror})"
                break
            if not data:
                self.closed = OVER
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) > _LONGEST_LINE:
            self.closed, self._unread = "it does not speak our protocol", b""
        return self._parse(lines)

    def close(self) -> None:
        self.closed = self.closed or "we closed it"
        self._link.close()

    def _parse(self, lines: list[bytes]) -> list[Message]:
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict) or "type" not in message:
                self.closed = f"it does not speak our protocol: {line[:80]!r}"
                break
            messages.append(message)
        return messages
