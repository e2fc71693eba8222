"""Append the events of a node to its event file, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EventLog:
    """The event file of one node. It is opened for every line, so it can be used after a fork and by any process."""

    folder: Path
    run: str
    node: str
    rank: int | None = None
    generation: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> EventLog:
        """Return the event log that COMPOSESIM_DIR, COMPOSESIM_RUN and COMPOSESIM_NODE describe; KeyError if one is missing."""
        folder, run, node = (environment[f"COMPOSESIM_{name}"] for name in ("DIR", "RUN", "NODE"))
        return cls(folder=Path(folder), run=run, node=node)

    def bind(self, *, rank: int | None = None, generation: int | None = None) -> EventLog:
        """Return the same log with another rank and generation in each event."""
        return replace(self, rank=rank, generation=generation)

    def emit(self, kind: str, /, **data: Any) -> None:
        """Append one event with the current time."""
        event = {"v": 1, "t": time.time(), "run": self.run, "node": self.node, "rank": self.rank}
        line = json.dumps({**event, "generation": self.generation, "kind": kind, "data": data}, default=str) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # One write per line: with O_APPEND, lines from several processes never interleave.
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            # A full disk must not end a training run; print the line that could not be stored.
            print(f"composesim: cannot append to {self.path} ({error.strerror}): {line}", end="", file=sys.stderr)

    @property
    def path(self) -> Path:
        """The node's event file."""
        return self.folder / "events" / f"{self.node}.jsonl"
