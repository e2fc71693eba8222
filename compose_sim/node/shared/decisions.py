"""What is told to those who decide about nodes, and what can they decide? A council is pure: events and times in, acts out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .master_protocol import Message


class Act:
    """Something to be done, in order."""


@dataclass(frozen=True)
class Send(Act):
    """Send `message` to `peer`."""

    peer: int
    message: Message


@dataclass(frozen=True)
class Drop(Act):
    """Close the connection of `peer`."""

    peer: int


@dataclass(frozen=True)
class Note(Act):
    """Write down what happened."""

    kind: str
    data: dict[str, Any]


class Council(Protocol):
    """Who decides: what happened to a peer (a connection) goes in, acts come out. Times are of the monotonic clock."""

    generation: int
    outcome: bool | None  # None while the run goes on

    def begin(self) -> list[Act]: ...
    def connected(self, peer: int, address: str, now: float) -> list[Act]: ...
    def received(self, peer: int, message: Message, now: float) -> list[Act]: ...
    def gone(self, peer: int, reason: str, now: float) -> list[Act]: ...
    def tick(self, now: float) -> list[Act]: ...

    @property
    def finished(self) -> bool: ...
