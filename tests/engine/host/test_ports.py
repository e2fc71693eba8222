"""Which process or container uses a port of this machine, and how Docker's error about a port is read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from compose_sim.engine.host.capacity import listening_ports, port_in_use

# The errors of docker compose 2.26 with Engine 26.1, for a port of a container and for one of a process.
ALLOCATED = (
    "Error response from daemon: driver failed programming external connectivity on endpoint composesim-a-jupyter-1 (5b1a): "
    "Bind for 127.0.0.1:8888 failed: port is already allocated"
)
IN_USE = (
    "Error response from daemon: driver failed programming external connectivity on endpoint composesim-a-jupyter-1 (5b1a): "
    "Error starting userland proxy: listen tcp4 127.0.0.1:8888: bind: address already in use"
)


def test_who_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as loopback, socket.create_server(("0.0.0.0", 0)) as anywhere:
        found = listening_ports()

        own = f"{Path('/proc/self/comm').read_text().strip()} (process {os.getpid()})"
        assert [found[server.getsockname()[1]] for server in (loopback, anywhere)] == [own, own]


def test_who_listens_elsewhere_leaves_the_port_on_loopback() -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:
        assert other.getsockname()[1] not in listening_ports()


@pytest.mark.parametrize(
    ("complaint", "port"),
    [
        (ALLOCATED, 8888),
        (IN_USE, 8888),
        ("Pool overlaps with other one on this address space", 0),
        ("listen unix /run/x.sock: bind: address already in use", 0),
        ("", 0),
    ],
)
def test_a_lost_port_is_told_from_other_complaints(complaint: str, port: int) -> None:
    assert port_in_use(complaint) == port
