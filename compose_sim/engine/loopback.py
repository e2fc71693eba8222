"""Find out which user is at the other end of a connection on loopback, where all users of this machine can connect."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

_ESTABLISHED = "01"  # a state in /proc/net/tcp


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether the other end of an IPv4 connection on loopback is a process of this user or of root."""
    try:
        here, there = connection.getsockname(), connection.getpeername()
    except OSError:  # it has ended
        return False
    table = Path("/proc/net/tcp")
    if table.exists():
        ends = f"{_as_in_table(there)} {_as_in_table(here)}"
        rows = (line.split() for line in table.read_text().splitlines()[1:])
        # Only an established connection is sure to show the user of the socket.
        users = (int(row[7]) for row in rows if f"{row[1]} {row[2]}" == ends and row[3] == _ESTABLISHED)
        return next(users, None) in (os.geteuid(), 0)
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().effective == os.geteuid() and any(
                (each.laddr, each.raddr) == (there, here) for each in process.net_connections("tcp4")
            ):
                return True
    return False


def _as_in_table(address: tuple[str, int]) -> str:
    """Return an address as /proc/net/tcp prints it: a number in the byte order of this machine, in hexadecimal digits."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"
