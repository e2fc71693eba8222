"""Write the records of a rank, one JSON object per line, to a file that the checks read after the run.

docs/observations.md lists the kinds of records. They are many and meant for checks; events (`shared/event_log.py`) are few.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable

from ..records.record import Place, Record
from ..records.script import FeatureOff
from ..shared.event_log import clock_of

_MAX_KEPT = 500
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Observations:
    """The records of one rank in one round. They are kept until `flush`; call it before anything that may never return."""

    def __init__(self, folder: Path, node: str, rank: int, generation: int) -> None:
        """Open nothing yet: a rank that observes nothing leaves no file."""
        self.path = folder / "observations" / f"{node}.{rank}.{generation}.jsonl"
        self._file: int | None = None
        self._kept: list[tuple[Record | str, float]] = []
        self._has_warned = False
        self._process = os.getpid()
        self._ahead = clock_of(folder).ahead

    def note(self, record: Record) -> None:
        """Keep one record, stamped with the time of this call."""
        self._keep(record)

    def note_often(self, kind: type[Record], fields: str) -> None:
        """
        Keep a record that is noted at each step, given as the text of its JSON fields: this takes a third of the time.

        Fields that have their default are left out. Use `encoded` for texts and places.
        """
        self._keep(f'{{"kind":"{kind.kind}",{fields},"t":')

    def _keep(self, record: Record | str) -> None:
        if self._process != os.getpid():  # forked by the script: what the parent kept is the parent's to write
            self._process, self._kept = os.getpid(), []
        self._kept.append((record, self._ahead + time.monotonic()))
        if len(self._kept) >= _MAX_KEPT:
            self.flush()

    def flush(self) -> None:
        """Write all kept records with one call: with O_APPEND, the lines of several processes never mix."""
        if not self._kept or self._process != os.getpid():
            return
        kept, self._kept = self._kept, []
        text = "".join([encode(record, t) for record, t in kept])
        try:
            if self._file is None:
                self.path.parent.mkdir(exist_ok=True)
                self._file = os.open(self.path, _APPEND, 0o644)
            os.write(self._file, text.encode())
        except OSError as error:  # a full disk must not end the user's training
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
            os.write(file, encode(record, self._ahead + time.monotonic()).encode())
        finally:
            os.close(file)


def _plain(value: Any) -> Any:
    """Return a value that JSON supports for one that it does not: a nested record, or a number of NumPy."""
    if hasattr(value, "__dataclass_fields__"):
        return vars(value)
    return value.item() if hasattr(value, "item") else str(value)


def _encoder() -> Callable[[Any], str]:
    """Return the encoder of Python's json module in C, which the module makes anew for each value; without it, the module's."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(default=_plain, separators=(",", ":"), check_circular=False).encode
    encode_in_c = make(None, _plain, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
    return lambda value: "".join(encode_in_c(value, 0))


to_json = _encoder()


@lru_cache(maxsize=1024)
def encoded(value: str | Place | None) -> str:
    """Return the JSON of a text or place, which a script has few of."""
    return to_json(value)


def encode(record: Record | str, t: float) -> str:
    """Return the line of a record that is noted at the time `t`; what cannot be encoded must not end the user's training."""
    if isinstance(record, str):
        return f"{record}{t:.6f}}}\n"
    try:
        return f'{{"kind":"{record.kind}","t":{t:.6f},{to_json(vars(record))[1:]}\n'
    except Exception:  # noqa: BLE001 - such as an object of the script that raises when it is printed
        why = f"a record of the kind {record.kind} cannot be written"
        return encode(FeatureOff(record.kind, why, traceback.format_exc()), t)
