"""Count the bytes of each TCP connection with netlink, as `ss -i` does; /proc does not count what sockets receive."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Collection, Iterator
from pathlib import Path

_SOCK_DIAG, _BY_FAMILY, _DONE, _ERROR, _INFO = 4, 20, 3, 2, 2
_REST = 300  # how much longer than an answer took it must be until the next one
_LIVE = 1 << 1 | 1 << 8  # established, close-wait
Totals = dict[int, int]
_header = struct.Struct("=IHHII")
_ports = struct.Struct("!HH")
_PORTS_AT, _INODE_AT, _ATTRIBUTES_AT = 16 + 4, 16 + 68, 16 + 72
_ACKED_AT = 120  # in tcp_info: bytes_acked, then bytes_received (Linux 4.2)


class TcpCounters:
    """
    Asks for the bytes of all connections of this machine, and no more often than it can afford.

    Each node of the local engine gets the connections of all of them: with 200 nodes, five thousand while they meet, for which 200
    agents would take more processor time each second than two cores have.
    """

    def __init__(self) -> None:
        """Allow to ask at once."""
        self._next_at = 0.0

    def bytes_by_socket(self, without_port: int, now: float) -> Totals | None:
        """Return what `bytes_by_socket` returns; None if it is too early to ask again at this time of the monotonic clock."""
        if now < self._next_at:
            return None
        began = time.thread_time()
        totals = bytes_by_socket(without_port)
        self._next_at = now + _REST * (time.thread_time() - began)
        return totals


def bytes_by_socket(without_port: int) -> Totals:
    """Return the bytes sent and received so far by inode, without connections that use this port; {} if unknown."""
    totals: Totals = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in _query(family):
                ports = _ports.unpack_from(message, _PORTS_AT)
                if without_port not in ports:
                    totals[struct.unpack_from("=I", message, _INODE_AT)[0]] = _bytes(message)
    except (OSError, struct.error):  # not supported (gVisor) or not permitted
        return {}
    return totals


def sockets_of(process: int) -> Iterator[int]:
    """Yield the inodes of a process's sockets."""
    try:
        descriptors = [entry.path for entry in os.scandir(f"/proc/{process}/fd")]
    except OSError:
        return
    for path in descriptors:
        try:
            name = str(Path(path).readlink())
        except OSError:  # it was closed
            continue
        if name.startswith("socket:["):
            yield int(name[len("socket:[") : -1])


def bytes_of(process: int, totals: Totals) -> int:
    """Return the bytes of all connections of one process."""
    mine: Collection[int] = set(sockets_of(process)) if totals else ()
    return sum(totals.get(inode, 0) for inode in mine)


def _query(family: int) -> Iterator[bytes]:
    everything = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _LIVE)
    request = everything + bytes(40) + b"\xff" * 8  # any address; all ones mean no cookie
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as link:
        link.settimeout(1.0)
        link.send(_header.pack(_header.size + len(request), _BY_FAMILY, 0x301, 1, 0) + request)
        while True:
            data = link.recv(1 << 17)
            while data:
                size, kind = _header.unpack_from(data)[:2]
                if kind == _DONE:
                    return
                if kind == _ERROR or size < _header.size:
                    raise OSError("netlink")
                yield data[:size]
                data = data[size + 3 & ~3 :]


def _bytes(message: bytes) -> int:
    at = _ATTRIBUTES_AT
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind == _INFO and size >= 4 + _ACKED_AT + 16:
            acked, received = struct.unpack_from("=QQ", message, at + 4 + _ACKED_AT)
            return int(acked + received)
        at += max(4, size + 3 & ~3)
    return 0
