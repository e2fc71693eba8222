"""Both ends of an authenticated connection, over a real pair of sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from compose_sim.node.shared.authentication import AuthenticatedConnection, MissingSecretError, read_secret

SECRET = b"5ec3e7" * 10
Pair = tuple[AuthenticatedConnection, AuthenticatedConnection]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as open_sockets:
        yield open_sockets


def a_pair(stack: ExitStack, of_node: bytes = SECRET) -> Pair:
    """Return the ends of the master and of a node after the handshake."""
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    stack.enter_context(theirs)
    master = AuthenticatedConnection(ours, SECRET, is_master=True)
    node = AuthenticatedConnection(theirs, of_node, is_master=False)
    for end in (node, master, node):
        end.receive()
    return master, node


def a_stranger(stack: ExitStack) -> tuple[AuthenticatedConnection, socket.socket]:
    """Return the master's end, and the other end as a plain socket."""
    ours, theirs = socket.socketpair()
    stack.enter_context(theirs)
    theirs.settimeout(10)
    return AuthenticatedConnection(stack.enter_context(ours), SECRET, is_master=True), theirs


def test_both_ends_exchange_messages_after_they_have_shown_the_secret(stack: ExitStack) -> None:
    master, node = a_pair(stack)

    assert master.authenticated
    assert node.authenticated
    node.send({"type": "join"})
    node.send({"type": "ready"})
    master.send({"type": "end", "reason": "x" * 4096})
    assert master.receive() == [{"type": "join"}, {"type": "ready"}]
    assert node.receive() == [{"type": "end", "reason": "x" * 4096}]


def test_another_secret_is_refused(stack: ExitStack) -> None:
    master, node = a_pair(stack, b"another")

    assert not master.authenticated
    assert not node.authenticated
    assert "not authenticated" in master.closed


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "join", "node": "node-0", "node_rank": 0, "nproc": 1}',
        b"",
        b"\xff\xfe",
        b"composesim " + b"0" * 64,
        b"composesim " + b"0" * 64 + b" " + b"0" * 64,
        b"GET / HTTP/1.1",
    ],
)
def test_nothing_that_a_stranger_sends_is_a_message(line: bytes, stack: ExitStack) -> None:
    master, stranger = a_stranger(stack)
    stranger.sendall(line + b'\n{"type": "join"}\n')

    assert master.receive() == []
    assert "not authenticated" in master.closed


def test_a_stranger_cannot_fill_the_memory(stack: ExitStack) -> None:
    master, stranger = a_stranger(stack)
    stranger.sendall(b"x" * 1000)

    assert master.receive() == []
    assert master.closed


def wire(stack: ExitStack) -> tuple[Pair, list[bytes]]:
    """Return two ends, and the lines that the node has sent: a greeting and two messages."""
    lines: list[bytes] = []

    class Recorded(AuthenticatedConnection):
        def _send(self, line: bytes) -> None:
            lines.append(line)
            super()._send(line)

    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    stack.enter_context(theirs)
    master, node = AuthenticatedConnection(ours, SECRET, is_master=True), Recorded(theirs, SECRET, is_master=False)
    for end in (node, master, node):
        end.receive()
    node.send({"type": "join"})
    node.send({"type": "done"})
    return (master, node), lines


def test_a_recorded_connection_cannot_be_replayed(stack: ExitStack) -> None:
    _, lines = wire(stack)
    master, stranger = a_stranger(stack)
    stranger.sendall(b"\n".join(lines) + b"\n")

    assert master.receive() == []
    assert "not authenticated" in master.closed


@pytest.mark.parametrize("change", ["repeated", "swapped", "edited", "reflected", "plain"])
def test_a_line_that_somebody_else_writes_into_the_connection_ends_it(change: str, stack: ExitStack) -> None:
    (master, node), (_, first, second) = wire(stack)
    assert [each["type"] for each in master.receive()] == ["join", "done"]
    master.send({"type": "end"})
    injected: dict[str, bytes] = {
        "repeated": second,
        "swapped": first,
        "edited": second.replace(b"done", b"fail"),
        "reflected": node._link.recv(65536).strip(),
        "plain": b'{"type": "done"}',
    }
    node._link.sendall(injected[change] + b"\n")

    assert master.receive() == []
    assert master.closed


@pytest.mark.parametrize("message", [[], "x", {"no": "type"}, {"type": ["join"]}, None])
def test_a_malformed_message_of_a_node_ends_its_connection(message: Any, stack: ExitStack) -> None:
    master, node = a_pair(stack)
    node.send(message)

    assert master.receive() == []
    assert master.closed


def test_a_deeply_nested_message_ends_the_connection(stack: ExitStack) -> None:
    master, node = a_pair(stack)
    text = b'{"type": "join", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    node._send(node._mac(False, 0, text) + b" " + text)

    assert master.receive() == []
    assert master.closed
    with pytest.raises(RecursionError):
        json.loads(text)


def test_a_run_without_a_secret_is_an_error(tmp_path: Any) -> None:
    with pytest.raises(MissingSecretError, match="control/secret"):
        read_secret({"COMPOSESIM_DIR": str(tmp_path)})
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "secret").write_text("\n")
    with pytest.raises(MissingSecretError, match="empty"):
        read_secret({"COMPOSESIM_DIR": str(tmp_path)})
