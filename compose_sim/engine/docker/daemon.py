"""Find out whether the Docker daemon responds: in a millisecond, and without waiting for a daemon that is starting or hangs."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from compose_sim.engine.host.docker_facts import docker_endpoint

_CREDENTIALS = struct.Struct("3i")  # process, user and group at the other end
_RESPONDS_WITHIN_S = 3.0  # if systemd holds the socket, a connection waits until the next daemon accepts it


def responds() -> bool:
    """Return whether the daemon answers a ping."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_RESPONDS_WITHIN_S)
        try:
            connection.connect(docker_endpoint().removeprefix("unix://"))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return connection.recv(len(b"HTTP/1.0 200")).endswith(b" 200")
        except OSError:
            return False


def shares_our_network() -> bool:
    """Return whether we are root in the network namespace of the daemon, and may therefore change the firewall without its help."""
    if os.geteuid() != 0:
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_RESPONDS_WITHIN_S)
        try:
            connection.connect(docker_endpoint().removeprefix("unix://"))
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            process, _, _ = _CREDENTIALS.unpack(credentials)
            return Path(f"/proc/{process}/ns/net").samefile("/proc/self/ns/net")
        except OSError:  # such as for a daemon in another namespace of processes
            return False


def away() -> str:
    """Return the message for a daemon that was there when the run was planned."""
    endpoint = docker_endpoint()
    return (
        f"the Docker daemon at '{endpoint}' stopped or restarted during the run; see 'docker version', then run again"
    )
