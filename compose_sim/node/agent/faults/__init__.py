"""What has this node been told to do from inside? Its agent looks into the node's folder of orders, does what is new, undoes the rest.

One file an order: `RUNFOLDER/orders/<node>/<id>.json` names a module of this folder, which has `do` and `undo`. What becomes of an
order is told as an `order` event: nothing that can be wrong with one, or with what it is to do, ends the agent.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from ...shared import roles
from ...shared.event_log import EventLog

_LOOK_SECONDS = 0.2
_COARSE_NS = 50_000_000  # a folder's time may stay the same for so long although a file has come
_NAME = re.compile(r"[a-z_]{1,40}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # names files


class FailedError(Exception):
    """An order that cannot be done here; says why."""


class Rank(Protocol):
    """What an order may know of a rank: `pid` is 0 until it has started."""

    rank: int
    pid: int
    ended: bool


@dataclass(frozen=True)
class Order:
    """One order; `values` is what its module asks for."""

    id: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Node:
    """What orders may know of their node, and what they leave with it until they are undone."""

    events: EventLog
    contained: bool = False  # whether it has a container to itself
    ranks: Sequence[Rank] = ()
    held: dict[str, Any] = field(default_factory=dict)  # by order

    def rank(self, order: Order) -> Rank:
        """The rank that an order is for; FailedError where it does not run here."""
        number = order.values["rank"]
        found = next((rank for rank in self.ranks if rank.rank == number and not rank.ended), None)
        if found is None:
            raise FailedError(f"rank {number} does not run on {self.events.node}")
        return found

    def start(self, order: Order, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of another role as a child of the agent, held until it is let go."""
        command = roles.command(role, str(os.getpid()), *arguments, options=("-I",))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self.held[order.id] = process
        return process

    def let_go(self, order: Order) -> None:
        """End what `start` started, if it has not ended."""
        process = self.held.pop(order.id, None)
        if process is not None:
            process.kill()
            process.wait()
            process.stdout.close()


class Module(Protocol):
    """What the module of an order has. FailedError from either says why it could not be."""

    def do(self, order: Order, node: Node) -> Generator[float, None, None]:
        """Do it; yields seconds to wait, since an agent must never."""
        ...

    # A module may have OUTLIVES_NODE = True: then it is undone when the agent leaves, since it would not go with the node.

    def undo(self, order: Order, node: Node) -> None:
        """Undo it, as far as there is anything left to undo; the agent may be another than the one that did it."""
        ...


class Orders:
    """The orders of one node. `wake_at` says when it wants to `look`, on the monotonic clock."""

    def __init__(self, events: EventLog, *, contained: bool = False) -> None:
        """Look at nothing yet."""
        self.wake_at = 0.0
        self._node = Node(events, contained)
        self._folder = events.folder / "orders" / events.node
        self._folder_time = 0
        self._files: dict[str, tuple[int, int]] = {}  # by name, what tells one version from the next
        self._phases: dict[str, str] | None = None  # by order; None until any order has come
        self._under_way: dict[str, tuple[Order, Generator[float, None, None]]] = {}
        self._continue_at: dict[str, float] = {}
        self._to_mend: dict[str, Order] = {}  # what was done and would outlive the node

    def look(self, ranks: Sequence[Rank]) -> None:
        """Take what is new, and go on with what is under way; to be called at every turn of the agent's loop."""
        now = time.monotonic()
        if now < self.wake_at:
            return
        self._node.ranks = ranks
        for path in self._changed():
            self._take(path)
        for identity in [identity for identity, at in self._continue_at.items() if at <= now]:
            self._go_on(identity)
        self.wake_at = min(now + _LOOK_SECONDS, *self._continue_at.values(), float("inf"))

    def close(self) -> None:
        """The agent leaves: undo what would outlive the node."""
        for order in list(self._to_mend.values()):
            self._undo(order)

    def _changed(self) -> list[Path]:
        """Orders that have come or changed: one look at the folder's time where none has."""
        try:
            folder_time = self._folder.stat().st_mtime_ns
            if folder_time == self._folder_time:
                return []
            self._folder_time = folder_time if time.time_ns() - folder_time > _COARSE_NS else 0
            files = {entry.name: entry.stat() for entry in os.scandir(self._folder) if entry.name.endswith(".json")}
        except OSError:  # no order has come yet; or one was taken away while we looked
            return []
        known, self._files = self._files, {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in files.items()}
        changed = [name for name in self._files if not name.startswith(".") and self._files[name] != known.get(name)]
        return [self._folder / name for name in sorted(changed)]

    def _take(self, path: Path) -> None:
        if self._phases is None:
            self._phases = _phases_told(self._node.events)
        try:
            told = json.loads(path.read_text())
            order = Order(id=str(told["id"]), name=str(told["name"]), values=dict(told["values"]))
            on = bool(told["on"])
            if not _ID.fullmatch(order.id):
                raise ValueError(f"id '{order.id}'")
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"'{path.name}' is not an order: {type(error).__name__}: {error}"
            self._node.events.emit("order", id=path.stem, phase="failed", why=why)
            return
        if on and order.id not in self._phases:
            self._do(order)
        elif not on and self._phases.get(order.id) != "undone":
            self._undo(order)

    def _do(self, order: Order) -> None:
        try:
            doing = _module(order.name).do(order, self._node)
        except FailedError as error:
            self._tell(order.id, "failed", str(error))
            return
        self._under_way[order.id] = (order, doing)
        self._go_on(order.id)

    def _go_on(self, identity: str) -> None:
        order, doing = self._under_way[identity]
        try:
            self._continue_at[identity] = time.monotonic() + next(doing)
            return
        except StopIteration:
            phase, why = "done", ""
            if getattr(_module(order.name), "OUTLIVES_NODE", False):
                self._to_mend[identity] = order
        except Exception as error:  # noqa: BLE001 - whatever it is, the node's ranks are not to suffer from it
            phase, why = "failed", _why(error)
        self._forget(identity)
        self._tell(order.id, phase, why)

    def _undo(self, order: Order) -> None:
        self._to_mend.pop(order.id, None)
        under_way = self._under_way.get(order.id)
        if under_way:
            under_way[1].close()
            self._forget(order.id)
        try:
            _module(order.name).undo(order, self._node)
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(order.id, "failed", _why(error))
        else:
            self._tell(order.id, "undone")

    def _forget(self, identity: str) -> None:
        self._under_way.pop(identity, None)
        self._continue_at.pop(identity, None)

    def _tell(self, identity: str, phase: str, why: str = "") -> None:
        assert self._phases is not None
        self._phases[identity] = phase
        self._node.events.emit("order", id=identity, phase=phase, why=why)


def _module(name: str) -> Module:
    if not _NAME.fullmatch(name) or not Path(__file__).with_name(f"{name}.py").exists():
        raise FailedError(f"'{name}' is no order that this node knows")
    module = import_module(f".{name}", __package__)
    if not hasattr(module, "do"):
        raise FailedError(f"'{name}' is no order that this node knows")
    return cast(Module, module)


def _phases_told(events: EventLog) -> dict[str, str]:
    """What this node has told of each order before: its agent may be another one, and must not do any of them twice."""
    phases: dict[str, str] = {}
    try:
        lines = events.path.read_text(errors="replace").splitlines()
    except OSError:
        return phases
    for line in lines:
        if '"kind": "order"' in line:
            try:
                data = json.loads(line)["data"]
                phases[data["id"]] = data["phase"]
            except (ValueError, KeyError, TypeError):
                continue
    return phases


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, FailedError) else f"{type(error).__name__}: {error}"
