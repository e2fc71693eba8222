"""Mark the nodes whose loss is expected, for the master to find when it loses one: the files of `control/absent`."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from pathlib import Path

from compose_sim.core.events.events import Event
from compose_sim.engine.run_folder.clock import read_clock
from compose_sim.engine.run_folder.safe_files import SafeFolder

_DETECTED_WITHIN_S = 10.0  # by then the master has noticed any loss that the fault caused; silence takes 5 s

PreviousMarks = dict[str, tuple[bool, tuple[float, float] | None]]  # node -> whether it was marked, and its _leaving


class ExpectedLosses:
    """The marks of one run. Used by the loop that follows the run and by the thread that executes interventions."""

    def __init__(self, folder: Path) -> None:
        self._clock = read_clock(SafeFolder(folder))
        self._marks = SafeFolder(folder / "control" / "absent")
        # node -> time of the run at which it was healed, and at which the mark expires
        self._leaving: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def expect(self, nodes: Iterable[str]) -> PreviousMarks:
        """Mark nodes that are about to be lost on purpose, and return the previous marks for `restore`."""
        previous: PreviousMarks = {}
        with self._lock:
            for node in nodes:
                previous[node] = (self._marks.status(node) is not None, self._leaving.pop(node, None))
                self._marks.append(node, "")
        return previous

    def restore(self, previous: PreviousMarks) -> None:
        """Undo `expect`, because the nodes were not lost after all."""
        with self._lock:
            for node, (was_marked, leaving) in previous.items():
                if not was_marked:
                    self._remove(node)
                elif leaving:
                    self._leaving[node] = leaving

    def returning(self, nodes: Iterable[str], *, started: bool) -> None:
        """Remove the marks of healed nodes once a round begins with them, or after a while if they were not `started` again."""
        now = self._clock.now()
        with self._lock:
            for node in nodes:
                self._leaving[node] = (now, math.inf if started else now + _DETECTED_WITHIN_S)

    def observe(self, events: Iterable[Event]) -> None:
        """Take note of new events of the run. Must also be called regularly if there are none."""
        now = self._clock.now()
        with self._lock:
            for event in events:
                if event.kind == "round":
                    for node in event.data.get("nodes") or ():
                        if event.t > self._leaving.get(node, (math.inf, 0.0))[0]:
                            self._remove(node)
            for node in [node for node, (_, expires) in self._leaving.items() if now > expires]:
                self._remove(node)

    def _remove(self, node: str) -> None:
        self._leaving.pop(node, None)
        self._marks.remove(node)
