"""Have all ranks of a running job dump torch's flight recorder, and gather what they wrote in one folder."""

from __future__ import annotations

import io
import pickle
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import DumpRanks
from compose_sim.core.plan.model import NODES
from compose_sim.core.view.redaction import Redaction
from compose_sim.engine.run_folder.control_requests import new_id, send_request
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import EngineError
from compose_sim.view.profiles import steps_of, wait_for

_FLIGHT = "observations/flight"
_MOST_BYTES, _MOST_VALUES = 4 << 20, 1_000_000  # of one dump: a pickle of a few bytes can describe far more


class PlainValues(pickle._Unpickler):  # in Python: that in C takes as much memory as the data ask for
    """Reads a pickle of dicts, lists and scalars; refuses to look up anything that could be called."""

    def __init__(self, data: bytes) -> None:
        """Read this pickle."""
        super().__init__(io.BytesIO(data))

    def find_class(self, module: str, name: str) -> Any:
        """Raise UnpicklingError."""
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:80])


def dump_ranks(folder: RunFolder, *, timeout_s: float) -> dict[int, Event]:
    """Return the `dumped` event of each rank that answered in time; raise EngineError if there is none."""
    tail = EventTail(folder.path, folder.read_plan(), logs=False)
    try:
        asked_at = folder.clock.now()
        send_request(folder, DumpRanks(), new_id("dump"))
        ranks = set(steps_of(folder))
        written = wait_for("dumped", folder, tail, ranks, asked_at, time.monotonic() + timeout_s)
    finally:
        tail.close()
    if not written:
        raise EngineError("no rank answered", hint=f"composesim ps --run {folder.name}")
    return written


def flight_dumps(files: SafeFolder) -> Iterator[str]:
    """Yield the names of all dumps of a run, which end in `rank_0` and so on."""
    for folder in (_FLIGHT, *(f"{NODES}/{node}/{_FLIGHT}" for node in files.folders(NODES))):
        with suppress(OSError, UnsafeFileError):
            yield from (f"{folder}/{name}" for name in files.files(folder) if re.fullmatch(r"rank_\d{1,6}", name))


def plain_dump(files: SafeFolder, name: str, redaction: Redaction) -> bytes:
    """Return a dump with plain values alone, so that whoever unpickles it runs nothing; a damaged one raises anything."""
    data = files.read_bytes(name, size=_MOST_BYTES)
    return pickle.dumps(redaction.value(PlainValues(data).load(), most=_MOST_VALUES), protocol=2)


def gather_dumps(folder: RunFolder, target: Path) -> dict[str, str]:
    """Write all dumps of a run into a folder that `fr_trace` reads; return why some could not be read, by name."""
    target.mkdir(parents=True, exist_ok=True)
    left_out = {}
    for name in flight_dumps(folder.files):
        file = name.rpartition("/")[2]
        try:
            (target / file).write_bytes(plain_dump(folder.files, name, Redaction(())))
        except Exception as error:  # noqa: BLE001 - as in plain_dump
            left_out[file] = f"{type(error).__name__}: {error}"[:200]
    return left_out
