"""Authenticate both ends of a connection, and each message, with the secret of the run.

The master sends a nonce, the node sends its own with a MAC of both, and the master answers with another MAC. Each message
then follows the MAC of its direction, number and text, with a key that depends on both nonces. So a replayed connection
is refused, and so is a line that an attacker inserts, repeats or leaves out.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from .master_protocol import Connection, Message

SECRET = "control/secret"  # in the run's folder; only the nodes' user can read it
AUTHENTICATE_SECONDS = 30.0  # on a busy machine, either end may have to wait for CPU time
_NONCE_BYTES = 32
_LONGEST_GREETING = 256
_GREETING = re.compile(rb"composesim ([0-9a-f]{64})(?: ([0-9a-f]{64}))?")
_MASTER, _NODE = b"master", b"node"


class MissingSecretError(RuntimeError):
    """The run's secret cannot be read."""


def read_secret(environment: Mapping[str, str]) -> bytes:
    """Return the secret of the run in COMPOSESIM_DIR; raise MissingSecretError if there is none."""
    path = Path(environment["COMPOSESIM_DIR"]) / SECRET
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise MissingSecretError(f"cannot read the run's secret '{path}': {error.strerror}") from None
    if not secret:
        raise MissingSecretError(f"the run's secret '{path}' is empty")
    return secret


class AuthenticatedConnection(Connection):
    """A connection that delivers messages only of a peer that has the same secret. Send nothing before `authenticated`."""

    _longest_line = _LONGEST_GREETING

    def __init__(self, link: socket.socket, secret: bytes, *, is_master: bool) -> None:
        """Take over `link`; the master greets the node."""
        super().__init__(link)
        self.authenticated = False
        self._secret = secret
        self._is_master = is_master
        self._sent = self._received = 0
        self._own_nonce = secrets.token_bytes(_NONCE_BYTES).hex().encode()
        self._key = b""
        if is_master:
            self._send(b"composesim " + self._own_nonce)

    def send(self, message: Message) -> None:
        """Send one message with its MAC."""
        text = json.dumps(message).encode()
        self._send(self._mac(self._is_master, self._sent, text) + b" " + text)
        self._sent += 1

    def _message(self, line: bytes) -> Message | None:
        mac, _, text = line.partition(b" ")
        expected = self._mac(not self._is_master, self._received, text)
        if not hmac.compare_digest(mac, expected):
            return None
        self._received += 1
        return super()._message(text)

    def _parse(self, lines: list[bytes]) -> list[Message]:
        while lines and not self.authenticated:
            line = lines.pop(0)
            if not self._greeted(line):
                self.closed = f"not authenticated: {line!r:.80}"
                return []
        return super()._parse(lines)

    def _greeted(self, line: bytes) -> bool:
        """Handle a line of the greeting; return whether it is right."""
        if not self._is_master and self._key:
            self._accept_if(hmac.compare_digest(line, self._proof(_MASTER)))
            return self.authenticated
        match = _GREETING.fullmatch(line)
        if match is None or bool(match[2]) != self._is_master:
            return False
        ours, theirs = self._own_nonce, match[1]
        nonces = ours + theirs if self._is_master else theirs + ours
        self._key = hmac.digest(self._secret, b"composesim " + nonces, "sha256")
        if not self._is_master:
            self._send(b"composesim " + ours + b" " + self._proof(_NODE))
            return True
        self._accept_if(hmac.compare_digest(match[2], self._proof(_NODE)))
        if self.authenticated:
            self._send(self._proof(_MASTER))
        return self.authenticated

    def _accept_if(self, is_right: bool) -> None:
        if is_right:
            self.authenticated, self._longest_line = True, Connection._longest_line

    def _proof(self, who: bytes) -> bytes:
        return hmac.new(self._key, b"proof " + who, "sha256").hexdigest().encode()

    def _mac(self, of_master: bool, number: int, text: bytes) -> bytes:
        place = b"%s %d " % (_MASTER if of_master else _NODE, number)
        return hmac.new(self._key, place + text, "sha256").hexdigest().encode()
