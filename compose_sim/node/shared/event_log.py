"""How does a node tell what happened? By appending events, one JSON line each, to its own file in the run's folder."""

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
class Events:
    """Where events go, and whose they are. Opened for every line: safe to use after a fork and from any process."""

    folder: Path
    run: str
    node: str
    rank: int | None = None
    generation: int | None = None

    def of(self, *, rank: int | None = None, generation: int | None = None) -> Events:
        """The same file, for the events of one rank or round."""
        return replace(self, rank=rank, generation=generation)

    def emit(self, kind: str, /, **data: Any) -> None:
        """Append one event, stamped with the time of this call."""
        event = {"v": 1, "t": time.time(), "run": self.run, "node": self.node, "rank": self.rank}
        line = json.dumps({**event, "generation": self.generation, "kind": kind, "data": data}, default=str) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # One write a line: with O_APPEND, lines of several processes never mix.
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            # A full disk must not end somebody's training; the line is shown where it could not be kept.
            print(f"composesim: cannot append to {self.path} ({error.strerror}): {line}", end="", file=sys.stderr)

    @property
    def path(self) -> Path:
        """The node's event file."""
        return self.folder / "events" / f"{self.node}.jsonl"


def events_of(environment: Mapping[str, str]) -> Events:
    """The events of the node that an environment describes (COMPOSESIM_*); KeyError where a variable is missing."""
    folder, run, node = (environment[f"COMPOSESIM_{name}"] for name in ("DIR", "RUN", "NODE"))
    return Events(folder=Path(folder), run=run, node=node)
