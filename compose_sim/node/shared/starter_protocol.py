"""How do the agent and the process that starts its ranks speak? One JSON packet a message over a pair of Unix sockets.

agent -> starter  `{"common": {NAME: VALUE, …}, "ranks": [{NAME: VALUE, …}, …], "more": BOOL}` start these ranks with the common
                  variables and their own; along with it comes one descriptor a rank, the pipe for its output
starter -> agent  `{"ready": true}` what ranks will need is imported · `{"started": LOCAL_RANK, "pid": …}`
                  `{"ended": LOCAL_RANK, "status": N}`, N as in `subprocess`: -signal or exit code; a hosted rank's also
                  says whether it was `"stopped"`, since its session had gone
Either end closing ends the other.
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
_MOST_DESCRIPTORS = 250  # the kernel's own limit is 253 a packet: more ranks take several


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends. Packets keep their borders, so that reading one never waits for the rest of it."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_ranks(channel: socket.socket, ranks: Sequence[Variables], outputs: Sequence[int]) -> None:
    """Have these ranks started. Raises ConnectionError where nobody reads any more."""
    # What all ranks share is sent once: nobody reads while the starter imports, and all of this waits in the socket's buffer.
    common = dict(set.intersection(*(set(rank.items()) for rank in ranks)))
    own = [{name: value for name, value in rank.items() if name not in common} for rank in ranks]
    for first in range(0, len(own), _MOST_DESCRIPTORS):
        end = first + _MOST_DESCRIPTORS
        send(channel, {"common": common, "ranks": own[first:end], "more": end < len(own)}, outputs[first:end])


def ranks_of(packet: Packet) -> list[Variables]:
    """The variables of each rank that a packet asks for."""
    return [{**packet["common"], **own} for own in packet["ranks"]]


def send(channel: socket.socket, packet: Packet, descriptors: Sequence[int] = ()) -> None:
    """Send a packet. Raises ConnectionError where nobody reads any more."""
    data = json.dumps(packet).encode()
    if descriptors:
        socket.send_fds(channel, [data], list(descriptors))
    else:
        channel.send(data)


def receive(channel: socket.socket) -> tuple[Packet, list[int]] | None:
    """
    The next packet and the descriptors that came with it; None when the other end is gone.

    Raises:
        OSError: a part of it was lost, because this process may open no more files.
    """
    try:
        data, descriptors, flags, _ = socket.recv_fds(channel, _LONGEST, _MOST_DESCRIPTORS)
    except ConnectionResetError:
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise OSError(
            errno.EMFILE, "ranks' outputs were lost on their way: too many open files (`ulimit -n` is the limit)"
        )
    return (json.loads(data), descriptors) if data else None
