"""Which nodes are away because somebody wanted it? Their marks lie in `orders/absent`, where the master looks when a node is lost."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from compose_sim.core.events.events import Event

_NEWS_TAKES_S = 10.0  # until a loss that the fault accounts for has been noticed: silence takes 5 s

Before = dict[str, tuple[bool, tuple[float, float] | None]]  # node -> whether it was marked, and until when


class Marks:
    """The marks of one run. The loop that follows the run and the thread that performs both speak to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "orders" / "absent"
        self._leaving: dict[
            str, tuple[float, float]
        ] = {}  # node -> Unix seconds: back since, mark no longer needed from
        self._lock = threading.Lock()

    def add(self, nodes: Iterable[str]) -> Before:
        """These nodes are about to be lost on purpose; returns what `restore` needs if nothing becomes of it."""
        before: Before = {}
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            for node in nodes:
                before[node] = ((self._folder / node).exists(), self._leaving.pop(node, None))
                (self._folder / node).touch()
        return before

    def restore(self, before: Before) -> None:
        """Nothing has become of it."""
        with self._lock:
            for node, (was_marked, leaving) in before.items():
                if not was_marked:
                    self._remove(node)
                elif leaving:
                    self._leaving[node] = leaving

    def returning(self, nodes: Iterable[str], *, started: bool) -> None:
        """These are healed: the mark goes when a round has begun with them, or after a while where they were not `started` anew."""
        now = time.time()
        with self._lock:
            for node in nodes:
                self._leaving[node] = (now, math.inf if started else now + _NEWS_TAKES_S)

    def hear(self, events: Iterable[Event]) -> None:
        """What is new in the run; to be called now and then, also when nothing is."""
        now = time.time()
        with self._lock:
            for event in events:
                if event.kind == "round":
                    for node in event.data.get("nodes") or ():
                        if event.t > self._leaving.get(node, (math.inf, 0.0))[0]:
                            self._remove(node)
            for node in [node for node, (_, until) in self._leaving.items() if now > until]:
                self._remove(node)

    def _remove(self, node: str) -> None:
        self._leaving.pop(node, None)
        (self._folder / node).unlink(missing_ok=True)
