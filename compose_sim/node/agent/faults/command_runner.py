"""Execute and undo the commands that composesim sends to this node.

A command is a file `RUNFOLDER/control/<node>/<id>.json`. Each outcome is a `command` event. The agent survives invalid
commands and commands that fail.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from ...shared.event_log import EventLog
from ...shared.regular_files import read_regular
from .command import Command, CommandHandler, ExecutionError, NodeContext, RankView

_POLL_SECONDS = 0.2
_MAX_BYTES = 1 << 20  # of a command
_COARSE_NS = (
    50_000_000  # the modification time of a folder may stay the same for this long although a file has been added
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # part of file names


class CommandRunner:
    """The commands of one node. `wake_at` is the next time to call `poll`, on the monotonic clock."""

    def __init__(self, events: EventLog, *, contained: bool = False) -> None:
        """Create a runner, without looking for commands yet."""
        self.wake_at = 0.0
        self._node = NodeContext(events, contained)
        self._folder = events.folder / "control" / events.node
        self._folder_time = 0
        self._files: dict[str, tuple[int, int]] = {}  # name -> inode and time of modification
        self._phases: dict[str, str] | None = None  # by id; None until the first command
        self._running: dict[str, tuple[Command, CommandHandler, Generator[float, None, None]]] = {}
        self._continue_at: dict[str, float] = {}
        self._to_undo: dict[str, Command] = {}  # executed commands that would outlive the node

    @property
    def grace_seconds(self) -> float:
        """The time between SIGTERM and SIGKILL, which a command may have changed."""
        return self._node.grace_seconds

    def wait_for_cluster(self) -> None:
        """Leave it to the cluster to kill the ranks."""
        self._node.grace_seconds = float("inf")

    def poll(self, ranks: Sequence[RankView]) -> None:
        """Take new commands, and continue those that are running; to be called in each iteration of the agent's loop."""
        now = time.monotonic()
        if now < self.wake_at:
            return
        self._node.ranks = ranks
        for path in self._changed_files():
            self._take(path)
        for identity in [identity for identity, at in self._continue_at.items() if at <= now]:
            self._continue(identity)
        self.wake_at = min(now + _POLL_SECONDS, *self._continue_at.values(), float("inf"))

    def close(self) -> None:
        """Undo the commands that would outlive the node."""
        for command in list(self._to_undo.values()):
            self._undo(command)

    def _changed_files(self) -> list[Path]:
        """Return new and changed commands. Costs one `stat` if there are none."""
        try:
            folder_time = self._folder.stat().st_mtime_ns
            if folder_time == self._folder_time:
                return []
            self._folder_time = folder_time if time.time_ns() - folder_time > _COARSE_NS else 0
            files = {entry.name: entry.stat() for entry in os.scandir(self._folder) if entry.name.endswith(".json")}
        except OSError:  # there is no command yet, or one was removed at this moment
            return []
        known, self._files = self._files, {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in files.items()}
        changed = [name for name in self._files if not name.startswith(".") and self._files[name] != known.get(name)]
        return [self._folder / name for name in sorted(changed)]

    def _take(self, path: Path) -> None:
        if self._phases is None:
            self._phases = _reported_phases(self._node.events)
        try:
            values = json.loads(read_regular(path, _MAX_BYTES))
            command = Command(id=str(values["id"]), name=str(values["name"]), values=dict(values["values"]))
            on = bool(values["on"])
            if not _ID.fullmatch(command.id):
                raise ValueError(f"id '{command.id}'")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"'{path.name}' is not a command: {type(error).__name__}: {error}"
            self._node.events.emit("command", id=path.stem, phase="failed", why=why)
            return
        if on and command.id not in self._phases:
            self._execute(command)
        elif not on and self._phases.get(command.id) != "undone":
            self._undo(command)

    def _execute(self, command: Command) -> None:
        try:
            handler = _handler_of(command)
        except ExecutionError as error:
            self._report(command.id, "failed", str(error))
            return
        self._running[command.id] = (command, handler, handler.execute(command, self._node))
        self._continue(command.id)

    def _continue(self, identity: str) -> None:
        command, handler, execution = self._running[identity]
        try:
            self._continue_at[identity] = time.monotonic() + next(execution)
            return
        except StopIteration:
            phase, why = "done", ""
            if handler.outlives_node:
                self._to_undo[identity] = command
        except Exception as error:  # noqa: BLE001 - no failure of a command may affect the ranks of the node
            phase, why = "failed", _why(error)
        self._forget(identity)
        self._report(identity, phase, why)

    def _undo(self, command: Command) -> None:
        self._to_undo.pop(command.id, None)
        running = self._running.get(command.id)
        if running:
            running[2].close()
            self._forget(command.id)
        try:
            _handler_of(command).undo(command, self._node)
        except Exception as error:  # noqa: BLE001 - as above
            self._report(command.id, "failed", _why(error))
        else:
            self._report(command.id, "undone")

    def _forget(self, identity: str) -> None:
        self._running.pop(identity, None)
        self._continue_at.pop(identity, None)

    def _report(self, identity: str, phase: str, why: str = "") -> None:
        assert self._phases is not None
        self._phases[identity] = phase
        self._node.events.emit("command", id=identity, phase=phase, why=why)


def _handler_of(command: Command) -> CommandHandler:
    from . import checkpoints, ranks, resources  # most runs have no faults, and their agents start sooner without these

    tables = (ranks.HANDLERS, resources.HANDLERS, checkpoints.HANDLERS)
    handlers: dict[str, CommandHandler] = {name: each for table in tables for name, each in table.items()}
    if command.name in handlers:
        return handlers[command.name]
    raise ExecutionError(f"unknown command '{command.name}'")


def _reported_phases(events: EventLog) -> dict[str, str]:
    """Return the last phase of each command: an earlier agent of this node may have executed it, which must not happen twice."""
    phases: dict[str, str] = {}
    try:
        lines = read_regular(events.path, -1).decode("utf-8", "replace").splitlines()
    except OSError:
        return phases
    for line in lines:
        if '"kind": "command"' in line:
            try:
                data = json.loads(line)["data"]
                phases[data["id"]] = data["phase"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    return phases


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ExecutionError) else f"{type(error).__name__}: {error}"
