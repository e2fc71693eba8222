"""How does a rank record what its script did? As observations: JSON lines in a file of its own, which checks read afterwards.

Events are few, and for people to follow; observations are many, and for checks. Both lie in the run's folder. Their kinds are
listed in docs/observations.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_FLUSH_BYTES = 1 << 16
_encode = json.JSONEncoder(default=str, separators=(",", ":")).encode


class Observations:
    """The observations of one rank in one round. Kept until `flush`, which is due before anything that may never return."""

    def __init__(self, folder: Path, node: str, rank: int, generation: int) -> None:
        """Open nothing yet: a rank that observes nothing leaves no file."""
        self.path = folder / "observations" / f"{node}.{rank}.{generation}.jsonl"
        self._file: int | None = None
        self._lines: list[str] = []
        self._bytes = 0
        self._told = False
        self._process = os.getpid()

    def note(self, kind: str, **data: Any) -> None:
        """Keep one observation, stamped with the time of this call."""
        if self._process != os.getpid():  # forked by the script: what our parent kept is our parent's to write
            self._process, self._lines, self._bytes = os.getpid(), [], 0
        line = _encode({"kind": kind, "t": round(time.time(), 6), **data})
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is kept, in one write: with O_APPEND, lines of several processes never mix."""
        if not self._lines or self._process != os.getpid():
            return
        text = "\n".join(self._lines) + "\n"
        self._lines, self._bytes = [], 0
        try:
            if self._file is None:
                self.path.parent.mkdir(exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.write(self._file, text.encode())
        except OSError as error:  # a full disk must not end somebody's training
            if not self._told:
                print(
                    f"composesim: cannot write to {self.path} ({error.strerror}): checks will miss it", file=sys.stderr
                )
            self._told = True
