"""Find out which user is at the other end of a connection on loopback, where all users of this machine can connect."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

_ESTABLISHED = "01"  # a state in /proc/net/tcp
# Of an IPv4 address in /proc/net/tcp6
_MAPPED = f"{0:016X}{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"


def is_own_peer(connection: socket.socket) -> bool:
    """
    Return whether the other end of an IPv4 connection on loopback is a process of this user or of root.

    For root, the user who called `sudo` counts too. Return False if the end is not known.
    """
    try:
        here, there = connection.getsockname(), connection.getpeername()
        users = _users_of(there, here)
    except OSError:  # it has ended, or there are no descriptors left
        return False
    caller = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return bool(users & {os.geteuid(), 0, int(caller) if caller.isdecimal() else 0})


def _users_of(one: tuple[str, int], other: tuple[str, int]) -> set[int]:
    """Return the user of the socket with these ends; a client may use an IPv6 socket for IPv4."""
    for table, prefix in (("tcp", ""), ("tcp6", _MAPPED)):
        ends = f"{prefix}{_as_in_table(one)} {prefix}{_as_in_table(other)}"
        with suppress(FileNotFoundError):
            rows = (line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:])
            # Only an established connection is sure to show the user of the socket.
            found = {int(row[7]) for row in rows if f"{row[1]} {row[2]}" == ends and row[3] == _ESTABLISHED}
            if found:
                return found
    return set()


def _as_in_table(address: tuple[str, int]) -> str:
    """Return an address as /proc/net/tcp prints it: a number in the byte order of this machine, in hexadecimal digits."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"
