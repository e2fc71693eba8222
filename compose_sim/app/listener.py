"""Define what a session reports while it runs, and the listeners that need no terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from compose_sim.core.events.events import Event
    from compose_sim.core.state.state import ClusterState


class Listener(Protocol):
    """Receives the events of a run as they arrive."""

    def progress(self, text: str) -> None:
        """Receive one line about a slow step before the nodes start, or about the end of the run."""

    def waiting(self, what: str) -> None:
        """Receive what a step before the nodes start waits for."""

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Receive the events since the last call, which may be none, and the state after them."""


class QuietListener:
    """Ignores everything."""

    def progress(self, text: str) -> None:
        """Ignore it."""

    def waiting(self, what: str) -> None:
        """Ignore it."""

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Ignore them."""


class ProgressListener(QuietListener):
    """Passes on progress lines only, for a run that repeats what another one printed."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def progress(self, text: str) -> None:
        """Pass it on."""
        self._listener.progress(text)


class OutputListener(QuietListener):
    """Passes on progress lines, and each line that a rank prints, prefixed with the name of the node."""

    def __init__(self, output: Callable[[str], object]) -> None:
        self._output = output

    def progress(self, text: str) -> None:
        """Pass it on."""
        self._output(text)

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Pass on the lines of ranks."""
        for event in events:
            if event.kind == "log":
                self._output(f"{event.node} | {event.data['line']}")
