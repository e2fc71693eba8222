"""Write the records of a rank, one JSON object per line, to a file that the checks read after the run.

docs/observations.md lists the kinds of records. They are many and meant for checks; events (`shared/event_log.py`) are few.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..records.record import Record
from ..shared.event_log import clock_of

_FLUSH_BYTES = 1 << 16
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Observations:
    """The records of one rank in one round. They are kept until `flush`; call it before anything that may never return."""

    def __init__(self, folder: Path, node: str, rank: int, generation: int) -> None:
        """Open nothing yet: a rank that observes nothing leaves no file."""
        self.path = folder / "observations" / f"{node}.{rank}.{generation}.jsonl"
        self._file: int | None = None
        self._lines: list[str] = []
        self._bytes = 0
        self._has_warned = False
        self._process = os.getpid()
        self._clock = clock_of(folder)

    def note(self, record: Record) -> None:
        """Keep one record, stamped with the time of this call."""
        if self._process != os.getpid():  # forked by the script: what the parent kept is the parent's to write
            self._process, self._lines, self._bytes = os.getpid(), [], 0
        line = encode(record, self._clock.now())
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all kept records with one call: with O_APPEND, the lines of several processes never mix."""
        if not self._lines or self._process != os.getpid():
            return
        text = "\n".join(self._lines) + "\n"
        self._lines, self._bytes = [], 0
        try:
            if self._file is None:
                self.path.parent.mkdir(exist_ok=True)
                self._file = os.open(self.path, _APPEND, 0o644)
            os.write(self._file, text.encode())
        except OSError as error:  # a full disk must not end somebody's training
            if not self._has_warned:
                print(
                    f"composesim: cannot write to {self.path} ({error.strerror}): checks will lack what this rank observes",
                    file=sys.stderr,
                )
            self._has_warned = True

    def note_from_child(self, record: Record) -> None:
        """Write one record from a process that the rank forked, at once."""
        file = os.open(self.path, _APPEND, 0o644)
        try:
            os.write(file, (encode(record, self._clock.now()) + "\n").encode())
        finally:
            os.close(file)


def _plain(value: Any) -> Any:
    """Return a value that JSON supports for one that it does not: a nested record, or a number of NumPy."""
    if hasattr(value, "__dataclass_fields__"):
        return vars(value)
    return value.item() if hasattr(value, "item") else str(value)


_encode = json.JSONEncoder(default=_plain, separators=(",", ":")).encode


def encode(record: Record, t: float) -> str:
    """Return the line of a record that is written at the time `t`."""
    return f'{{"kind":"{record.kind}","t":{t:.6f},{_encode(vars(record))[1:]}'
