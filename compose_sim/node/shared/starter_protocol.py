"""Exchange messages between the agent and the starter, the process that starts the ranks: one JSON packet per message.

agent -> starter
    `{"common": {NAME: VALUE, …}, "ranks": [{NAME: VALUE, …}, …], "more": BOOL}`: start these ranks with the common
    variables and those of each rank. The packet carries one descriptor per rank, the pipe for the output.

starter -> agent
    `{"ready": true}`: everything that ranks need is imported.
    `{"started": LOCAL_RANK, "pid": PID}`
    `{"ended": LOCAL_RANK, "status": N}`, with an exit code or minus a signal as in `subprocess`; for a hosted rank also
    `"stopped": BOOL`, whether it was stopped because the session had ended; for one that could not be started because no
    process id is left, `"no_process_ids": true`.

Either process exits when the other one closes the socket.
"""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Sequence
from typing import Any

Packet = dict[str, Any]
Variables = dict[str, str]
_LONGEST = 1 << 17
_MAX_DESCRIPTORS = 250  # the kernel's limit is 253 per packet; more ranks take several packets


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a channel. It preserves packet boundaries, so reading a packet never waits for the rest of it."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_ranks(channel: socket.socket, ranks: Sequence[Variables], outputs: Sequence[int]) -> None:
    """Request the start of these ranks; raises ConnectionError if the starter has ended."""
    # Send what all ranks have in common once: the starter does not read while it imports, and all packets must fit into
    # the socket's buffer.
    common = dict(set.intersection(*(set(rank.items()) for rank in ranks)))
    own = [{name: value for name, value in rank.items() if name not in common} for rank in ranks]
    for first in range(0, len(own), _MAX_DESCRIPTORS):
        end = first + _MAX_DESCRIPTORS
        send(channel, {"common": common, "ranks": own[first:end], "more": end < len(own)}, outputs[first:end])


def ranks_of(packet: Packet) -> list[Variables]:
    """Return the variables of each rank in a packet."""
    return [{**packet["common"], **own} for own in packet["ranks"]]


def send(channel: socket.socket, packet: Packet, descriptors: Sequence[int] = ()) -> None:
    """Send a packet; raises ConnectionError if the other process has ended."""
    data = json.dumps(packet).encode()
    if descriptors:
        socket.send_fds(channel, [data], list(descriptors))
    else:
        channel.send(data)


def receive(channel: socket.socket) -> tuple[Packet, list[int]] | None:
    """Return the next packet with its descriptors, or None if the other process has ended.

    Raises:
        OSError: descriptors were lost, because this process has too many open files.
    """
    try:
        data, descriptors, flags, _ = socket.recv_fds(channel, _LONGEST, _MAX_DESCRIPTORS)
    except ConnectionResetError:
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise OSError(
            errno.EMFILE, "cannot receive the ranks' output pipes: too many open files. Raise the limit (`ulimit -n`)"
        )
    return (json.loads(data), descriptors) if data else None
