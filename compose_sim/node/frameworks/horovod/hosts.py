"""Which nodes can horovodrun use, and whose ranks have joined? Nodes tell it as events, and a first ssh session to each proves it.

The session stays open: horovodrun's own share its connection, and its end is the end of all of them.
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

from ...shared import process
from . import ssh

_GREETING = b"composesim\n"
_LONGEST_LOOK = 1 << 20
PATIENCE_SECONDS = 10.0  # more than the master takes to notice that a node has gone
_AGAIN_SECONDS = 1.0


@dataclass
class Told:
    """What nodes have told: a line of each one's events after the other. A node that starts anew has told nothing yet."""

    host_keys: dict[str, str] = field(default_factory=dict)
    joined: dict[str, set[int]] = field(default_factory=dict)  # the ranks of each node that have initialised Horovod

    def line(self, text: str) -> None:
        """One event; what is not understood says nothing."""
        try:
            event = json.loads(text)
            kind, node, data = event["kind"], event["node"], event["data"]
        except (ValueError, KeyError, TypeError):
            return
        if kind == "node-started":
            self.host_keys.pop(node, None)
            self.joined.pop(node, None)
        elif kind == "ssh":
            self.host_keys[node] = str(data["host_key"])
        elif kind == "init" and data.get("phase") == "done":
            self.joined.setdefault(node, set()).add(event["rank"])
        elif kind in ("init", "rank-exited"):
            self.joined.get(node, set()).discard(event["rank"])

    def count(self, nodes: Collection[str]) -> int:
        """How many ranks of these nodes have joined."""
        return sum(len(ranks) for node, ranks in self.joined.items() if node in nodes)


class Listening:
    """The events of nodes, read on from where the last look ended."""

    def __init__(self, folder: Path, told: Told) -> None:
        self._folder, self.told = folder, told
        self._read: dict[Path, int] = {}

    def look(self, nodes: Collection[str]) -> None:
        """Read what is new of these nodes; half a line waits for its other half."""
        for node in nodes:
            path = self._folder / f"{node}.jsonl"
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                while True:
                    lines, newline, _ = file.read(_LONGEST_LOOK).rpartition(b"\n")
                    if not newline:
                        break
                    self._read[path] = self._read.get(path, 0) + len(lines) + 1
                    file.seek(self._read[path])
                    for line in lines.decode(errors="replace").splitlines():
                        self.told.line(line)


class UnreachableError(Exception):
    """A node that ssh does not reach; says what ssh said."""


@dataclass
class Failing:
    """A node that ssh does not reach: since when, and when it is tried again, on the monotonic clock."""

    since: float
    again_at: float = 0.0


@dataclass
class Gate:
    """A lock that others wait for before they may go to a node: closed while we hold it."""

    file: Path
    _descriptor: int = -1

    def close(self) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def open(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Way:
    """The first session to one node: it is there when the node has answered in it."""

    def __init__(self, folder: Path, node: str) -> None:
        """Begin to connect."""
        self.node, self.stands, self._said = node, False, b""
        (folder / f"{node}.sock").unlink(missing_ok=True)  # of an earlier one that was killed
        options = ["-F", str(folder / "config"), "-o", "ControlMaster=yes"]
        self._process = subprocess.Popen(
            [ssh.program("ssh") or "ssh", *options, node, "echo composesim && exec cat"],
            stdin=subprocess.PIPE,  # its end ends `cat`, and with it the session
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=partial(process.die_with, os.getpid()),
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def look(self) -> None:
        """See whether the node has answered; UnreachableError where ssh has given up, or the connection has ended."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if not self.stands:
            self._said += self._process.stdout.read() or b""
            self.stands = self._said == _GREETING
        if self._process.poll() is not None:
            said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise UnreachableError(said[-1] if said else f"ssh ended with exit code {self._process.returncode}")

    def close(self) -> None:
        """End the connection, and with it all sessions that share it."""
        self._process.kill()
        self._process.communicate()


class Ways:
    """The ways to all nodes that are there."""

    def __init__(self, folder: Path, shared: Path) -> None:
        """Make the run's key pair in `folder`, which only this process's user may read; its public half opens all nodes."""
        self._folder = folder
        self._ways: dict[str, Way] = {}
        self._gates: dict[str, Gate] = {}
        self._failing: dict[str, Failing] = {}
        ssh.write_whole(ssh.authorized_keys(shared), ssh.make_key(folder / "key") + "\n")
        ssh.write_whole(folder / "config", ssh.client_settings(folder))
        ssh.write_whole(folder / "gated", ssh.gated_settings(folder))
        ssh.write_whole(folder / "bin" / "ssh", ssh.wrapper(folder), mode=0o755)

    @property
    def programs(self) -> Path:
        """The folder of the `ssh` that others shall find."""
        return self._folder / "bin"

    def close_gates(self, nodes: Collection[str]) -> None:
        """From now on others wait for these nodes."""
        for node in nodes:
            gate = self._gates[node] = Gate(self._folder / f"{node}.gate")
            gate.close()

    def update(self, present: Collection[str], told: Told, *, now: float) -> dict[str, str]:
        """
        Go to nodes that have come, again and again, and forget those that have gone; `now` is of the monotonic clock.

        Nodes that are given up, and why: they could not be reached for PATIENCE_SECONDS. Each is told once.
        """
        for node in [node for node in self._ways if node not in present]:
            self._ways.pop(node).close()
        self._failing = {node: failing for node, failing in self._failing.items() if node in present}
        for node in present:
            failing = self._failing.get(node)
            if node not in self._ways and node in told.host_keys and (failing is None or now >= failing.again_at):
                keys = "".join(ssh.known_host(each, key) for each, key in told.host_keys.items())
                ssh.write_whole(self._folder / "known_hosts", keys)
                self._ways[node] = Way(self._folder, node)
        given_up: dict[str, str] = {}
        for node, way in list(self._ways.items()):
            try:
                way.look()
            except UnreachableError as error:
                self._ways.pop(node).close()
                failing = self._failing.setdefault(node, Failing(since=now))
                failing.again_at = now + _AGAIN_SECONDS
                if now - failing.since >= PATIENCE_SECONDS:
                    failing.again_at = float("inf")
                    given_up[node] = str(error)
            else:
                if way.stands:
                    self._failing.pop(node, None)
                    if node in self._gates:
                        self._gates[node].open()
        return given_up

    @property
    def standing(self) -> list[str]:
        """The nodes that have answered."""
        return [node for node, way in self._ways.items() if way.stands]

    @property
    def under_way(self) -> list[str]:
        """The nodes that are asked, and have not answered."""
        return [node for node, way in self._ways.items() if not way.stands]

    def close(self) -> None:
        """Leave no connection, and nobody waiting at a gate."""
        while self._ways:
            self._ways.popitem()[1].close()
        for gate in self._gates.values():
            gate.open()
