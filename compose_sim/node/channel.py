"""How do the agent and the process that starts its ranks speak? One JSON packet a message over a pair of Unix sockets.

agent -> starter  `{"ranks": [{NAME: VALUE, …}, …]}` start these ranks with these variables; along with it comes
                  one descriptor a rank, the pipe for its output
starter -> agent  `{"started": LOCAL_RANK, "pid": …}` · `{"ended": LOCAL_RANK, "status": N}`, N as in `subprocess`: -signal or exit code
Either end closing ends the other.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

Packet = dict[str, Any]
_LONGEST = 1 << 17
_MOST_DESCRIPTORS = 250  # the kernel's own limit is 253 a packet


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends. Packets keep their borders, so that reading one never waits for the rest of it."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, packet: Packet, descriptors: Sequence[int] = ()) -> None:
    """Send a packet. Raises OSError where nobody reads any more."""
    data = json.dumps(packet).encode()
    if descriptors:
        socket.send_fds(channel, [data], list(descriptors))
    else:
        channel.send(data)


def receive(channel: socket.socket) -> tuple[Packet, list[int]] | None:
    """The next packet and the descriptors that came with it; None when the other end is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, _MOST_DESCRIPTORS)
    except ConnectionResetError:
        return None
    return (json.loads(data), descriptors) if data else None
