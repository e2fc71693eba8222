"""Everything that the agent sends to the starter arrives; with real sockets and descriptors."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from compose_sim.node.shared import starter_protocol

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    agent, starter = starter_protocol.pair()
    with agent, starter:
        yield agent, starter


@pytest.mark.parametrize("count", [1, 250, 251, 260])
def test_any_number_of_ranks_arrives_before_anybody_reads(ends: Ends, count: int) -> None:
    agent, starter = ends
    agent.setblocking(False)
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(count), "LONG": "x" * 1000} for rank in range(count)]
    outputs = [os.memfd_create(f"output-{rank}") for rank in range(count)]
    files = [os.fstat(output).st_ino for output in outputs]
    starter_protocol.send_ranks(agent, ranks, outputs)
    arrived, arrived_files, more = [], [], True
    while more:
        received = starter_protocol.receive(starter)
        assert received is not None
        packet, descriptors = received
        arrived += starter_protocol.ranks_of(packet)
        arrived_files += [os.fstat(descriptor).st_ino for descriptor in descriptors]
        more = packet["more"]
        for descriptor in descriptors:
            os.close(descriptor)
    for output in outputs:
        os.close(output)
    assert arrived == ranks
    assert arrived_files == files


def test_descriptors_that_were_lost_are_missed(ends: Ends) -> None:
    agent, starter = ends
    outputs = [os.memfd_create("output") for _ in range(20)]
    starter_protocol.send_ranks(agent, [{"RANK": str(rank)} for rank in range(20)], outputs)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(outputs) + 5, hard))
    try:
        with pytest.raises(OSError, match="too many open files"):
            starter_protocol.receive(starter)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for output in outputs:
            os.close(output)


def test_nobody_reads_any_more(ends: Ends) -> None:
    agent, starter = ends
    starter.close()
    with pytest.raises(ConnectionError):
        starter_protocol.send_ranks(agent, [{"RANK": "0"}], [1])
    assert starter_protocol.receive(agent) is None
