"""Track which nodes horovodrun can use and which ranks have joined, from the nodes' events and one ssh session to each.

The session stays open: horovodrun's own sessions share the connection, and end with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ....node.shared import process
from ....node.shared.regular_files import open_regular
from . import ssh

_GREETING = b"composesim\n"
_READ_BYTES = 1 << 20
PATIENCE_SECONDS = 10.0  # more than the master takes to notice that a node is lost
_RETRY_SECONDS = 1.0


@dataclass
class NodeStates:
    """What nodes have reported in their events. A node that was restarted has not reported anything yet."""

    host_keys: dict[str, str] = field(default_factory=dict)
    joined: dict[str, set[int]] = field(default_factory=dict)  # the ranks of each node that have initialized Horovod

    def add_event(self, line: str) -> None:
        """Update the states from one line of an event file; ignore malformed lines."""
        try:
            event = json.loads(line)
            self._add(event["kind"], event["node"], event["rank"], event["data"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return

    def _add(self, kind: str, node: str, rank: int, data: dict[str, Any]) -> None:
        if kind == "node-started":
            self.host_keys.pop(node, None)
            self.joined.pop(node, None)
        elif kind == "ssh":
            self.host_keys[node] = str(data["host_key"])
        elif kind == "init" and data.get("phase") == "done":
            self.joined.setdefault(node, set()).add(rank)
        elif kind in ("init", "rank-exited"):
            self.joined.get(node, set()).discard(rank)

    def joined_ranks(self, nodes: Collection[str]) -> int:
        """Return the number of ranks of these nodes that have joined."""
        return sum(len(ranks) for node, ranks in self.joined.items() if node in nodes)


class EventReader:
    """Reads the nodes' event files incrementally."""

    def __init__(self, folder: Path, states: NodeStates) -> None:
        """Add the events in a run's folder to `states`."""
        self._folder, self._states = folder, states
        self._offsets: dict[Path, int] = {}

    def read(self, nodes: Collection[str]) -> None:
        """Read the new events of these nodes; an incomplete last line is read later."""
        for node in nodes:
            path = self._folder / "nodes" / node / "events" / f"{node}.jsonl"
            with contextlib.suppress(OSError), os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
                file.seek(self._offsets.get(path, 0))
                while True:
                    lines, newline, _ = file.read(_READ_BYTES).rpartition(b"\n")
                    if not newline:
                        break
                    self._offsets[path] = self._offsets.get(path, 0) + len(lines) + 1
                    file.seek(self._offsets[path])
                    for line in lines.decode(errors="replace").splitlines():
                        self._states.add_event(line)


class UnreachableError(Exception):
    """ssh cannot reach a node; the message comes from ssh."""


@dataclass
class _Unreachable:
    """A node that ssh cannot reach: since when, and when to try again, on the monotonic clock."""

    since: float
    retry_at: float = 0.0


@dataclass
class AccessLock:
    """A file lock that horovodrun's sessions to a node wait for."""

    file: Path
    _descriptor: int = -1

    def acquire(self) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SshConnection:
    """The first ssh session to one node; later sessions share the connection."""

    def __init__(self, folder: Path, node: str) -> None:
        """Start to connect."""
        self.is_open, self._output = False, b""
        (folder / f"{node}.sock").unlink(missing_ok=True)  # of an earlier session that was killed
        options = ["-F", str(folder / "config"), "-o", "ControlMaster=yes"]
        self._process = subprocess.Popen(
            [ssh.program("ssh") or "ssh", *options, node, "echo composesim && exec cat"],
            stdin=subprocess.PIPE,  # `cat` and with it the session end when this pipe is closed
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=partial(process.die_with, os.getpid()),
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def poll(self) -> None:
        """Check whether the node has answered; raises UnreachableError if ssh has given up or the connection has ended."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if not self.is_open:
            self._output += self._process.stdout.read() or b""
            self.is_open = self._output == _GREETING
        if self._process.poll() is not None:
            errors = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise UnreachableError(errors[-1] if errors else f"ssh ended with exit code {self._process.returncode}")

    def close(self) -> None:
        """End the connection, and with it all sessions that share it."""
        self._process.kill()
        self._process.communicate()


class SshConnections:
    """The ssh connections to all present nodes."""

    def __init__(self, folder: Path, shared: Path) -> None:
        """Make the run's key pair in `folder`, which only this user may read, and authorize it on all nodes."""
        self._folder = folder
        self._connections: dict[str, SshConnection] = {}
        self._locks: dict[str, AccessLock] = {}
        self._unreachable: dict[str, _Unreachable] = {}
        ssh.write_atomically(ssh.authorized_keys(shared), ssh.make_key(folder / "key") + "\n")
        ssh.write_atomically(folder / "config", ssh.client_settings(folder))
        ssh.write_atomically(folder / "locked", ssh.locked_settings(folder))
        ssh.write_atomically(self.programs / "ssh", ssh.wrapper(folder), mode=0o755)

    @property
    def programs(self) -> Path:
        """The folder with the `ssh` that other programs should use."""
        return self._folder / "bin"

    def lock(self, nodes: Collection[str]) -> None:
        """Let other programs wait until these nodes can be reached."""
        for node in nodes:
            lock = self._locks[node] = AccessLock(self._folder / f"{node}.lock")
            lock.acquire()

    def update(self, present: Collection[str], states: NodeStates, *, now: float) -> dict[str, str]:
        """
        Connect to new nodes, with retries, and forget those that have gone.

        Return each node that was unreachable for PATIENCE_SECONDS with the reason, once.
        """
        for node in [node for node in self._connections if node not in present]:
            self._connections.pop(node).close()
        self._unreachable = {node: since for node, since in self._unreachable.items() if node in present}
        for node in present:
            unreachable = self._unreachable.get(node)
            may_try = unreachable is None or now >= unreachable.retry_at
            if node not in self._connections and node in states.host_keys and may_try:
                keys = "".join(ssh.known_host(each, key) for each, key in states.host_keys.items())
                ssh.write_atomically(self._folder / "known_hosts", keys)
                self._connections[node] = SshConnection(self._folder, node)
        given_up: dict[str, str] = {}
        for node, connection in list(self._connections.items()):
            try:
                connection.poll()
            except UnreachableError as error:
                self._connections.pop(node).close()
                unreachable = self._unreachable.setdefault(node, _Unreachable(since=now))
                unreachable.retry_at = now + _RETRY_SECONDS
                if now - unreachable.since >= PATIENCE_SECONDS:
                    unreachable.retry_at = float("inf")
                    given_up[node] = str(error)
            else:
                if connection.is_open:
                    self._unreachable.pop(node, None)
                    if node in self._locks:
                        self._locks[node].release()
        return given_up

    @property
    def open(self) -> list[str]:
        """The nodes that have answered."""
        return [node for node, connection in self._connections.items() if connection.is_open]

    @property
    def pending(self) -> list[str]:
        """The nodes that have not answered yet."""
        return [node for node, connection in self._connections.items() if not connection.is_open]

    def close(self) -> None:
        """End all connections, and release all locks."""
        while self._connections:
            self._connections.popitem()[1].close()
        for lock in self._locks.values():
            lock.release()
