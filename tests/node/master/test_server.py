"""A real master drops connections of strangers, reports them once per address, and continues the run."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from compose_sim.node.agent.master_client import MasterClient
from compose_sim.node.master import server
from compose_sim.node.master.rendezvous import Rendezvous
from compose_sim.node.master.rendezvous_master import RendezvousMaster, StoreProcess
from compose_sim.node.shared.event_log import EventLog

SECRET = "5ec3e7" * 10
PLACE = {"node": "node-0", "node_rank": 0, "nproc": 1, "ready": True}


class Node:
    """A node that takes part in one round and reports success."""

    def __init__(self, port: int, secret: str = SECRET) -> None:
        self.selector = selectors.DefaultSelector()
        self.client = MasterClient(f"127.0.0.1:{port}", secret.encode(), self.selector, self)
        self.seen: list[str] = []

    def run(self, seconds: float = 30.0, until: str = "end") -> list[str]:
        self.client.connect()
        deadline = time.monotonic() + seconds
        while until not in self.seen and time.monotonic() < deadline:
            for key, _ in self.selector.select(0.05):
                key.data()
            self.client.poll()
        self.client.close()
        self.selector.close()
        return self.seen

    def connected(self) -> None:
        self.client.send({"type": "join", **PLACE})

    def received(self, message: dict[str, Any]) -> None:
        self.seen.append(message["type"])
        if message["type"] == "round":
            self.client.send({"type": "done"})

    def disconnected(self, reason: str) -> None:
        self.seen.append("disconnected")

    def unreachable(self, reason: str) -> None:
        self.seen.append("unreachable")


class Master:
    """A master in a thread of this process, for a run of one node."""

    def __init__(self, folder: Path) -> None:
        for name in ("events", "control"):
            (folder / name).mkdir()
        (folder / "control" / "secret").write_text(SECRET + "\n")
        self.events = EventLog(folder=folder, run="test", node="master")
        self.events.path.touch()
        listener = server.listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        stores = StoreProcess(None, 0, "127.0.0.1")
        self.exit_code: int | None = None
        self._server = RendezvousMaster(Rendezvous(nodes=1, max_restarts=0), listener, stores, self.events)
        self._listener = listener
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self._listener:
            self.exit_code = self._server.run()

    def refused(self) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in self.events.path.read_text().splitlines()]
        return [each["data"] for each in events if each["kind"] == "connection-refused"]

    def wait_for_refusal(self) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while not (found := self.refused()):
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        return found[0]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    made = Master(tmp_path)
    yield made
    made.thread.join(30)
    assert made.exit_code == 0


def test_a_node_with_the_secret_takes_part(master: Master) -> None:
    assert Node(master.port).run() == ["round", "end"]
    master.thread.join(30)

    assert master.refused() == []


def test_a_node_with_another_secret_never_joins(master: Master) -> None:
    stranger = Node(master.port, "another")
    thread = threading.Thread(target=stranger.run, args=(2.0,))
    thread.start()

    assert master.wait_for_refusal()["address"] == "127.0.0.1"
    thread.join()
    assert stranger.seen == []
    assert Node(master.port).run() == ["round", "end"]


@pytest.mark.parametrize(
    "text",
    [
        b'{"type": "join", "node": "node-0", "node_rank": 0, "nproc": 1}\n{"type": "failed", "exit_code": 1}\n',
        b"[" * 100_000 + b"\n",
        b"\0" * 3_000_000,
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_a_stranger_is_dropped_and_reported_once(text: bytes, master: Master) -> None:
    for _ in range(3):
        connected = socket.create_connection(("127.0.0.1", master.port), timeout=10)
        with connected as stranger, suppress(ConnectionResetError, BrokenPipeError):
            stranger.sendall(text)
            while stranger.recv(65536):
                pass
    refused = master.wait_for_refusal()

    assert refused["address"] == "127.0.0.1"
    assert Node(master.port).run() == ["round", "end"]
    assert len(master.refused()) == 1


def test_silent_connections_do_not_keep_nodes_out(master: Master) -> None:
    with ExitStack() as stack:
        for _ in range(server.MAX_STRANGERS + 20):
            stack.enter_context(socket.create_connection(("127.0.0.1", master.port), timeout=10))
        assert Node(master.port).run() == ["round", "end"]
    assert master.wait_for_refusal()["reason"] == "too many connections"


def test_a_connection_that_stays_silent_is_dropped(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "AUTHENTICATE_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", master.port), timeout=30) as silent:
        silent.recv(4096)  # the greeting
        assert silent.recv(4096) == b""
    assert "not authenticated after" in master.wait_for_refusal()["reason"]
    assert Node(master.port).run() == ["round", "end"]
