"""Have all ranks of a running job profile some steps or dump torch's flight recorder, and gather what they wrote."""

from __future__ import annotations

import io
import math
import pickle
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import DumpRanks, ProfileSteps
from compose_sim.core.plan.model import NODES
from compose_sim.core.view.redaction import Redaction
from compose_sim.core.view.trace import Profile
from compose_sim.engine.run_folder.control_requests import new_id, send_request
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.node_files import files_of_nodes, folder_of
from compose_sim.engine.run_folder.safe_files import SafeFolder, UnsafeFileError
from compose_sim.errors import EngineError, SpecError
from compose_sim.node.shared.progress_page import ProgressPage

_LOOK_S = 0.25  # for the speed of the ranks
_DELIVERY_S = 1.0  # until the agents of all nodes have asked their ranks
_POLL_S = 0.1


@dataclass(frozen=True)
class Taken:
    """The profiles of a window of steps, and why some ranks have none."""

    first: int
    profiles: tuple[Profile, ...]
    missing: dict[int, str]


def take_profiles(folder: RunFolder, *, steps: int, timeout_s: float) -> Taken:
    """
    Profile the same steps on all ranks of a running run, and return the profiles.

    Raises SpecError if no rank has made a step, and EngineError if no rank has written a profile in time.
    """
    before = steps_of(folder)
    if not any(before.values()):
        raise SpecError(
            f"no rank of '{folder.name}' has made a step of a torch optimizer",
            hint=f"composesim ps --run {folder.name}",
        )
    time.sleep(_LOOK_S)
    now = steps_of(folder)
    speed = max(now[rank] - before.get(rank, now[rank]) for rank in now) / _LOOK_S
    first = max(now.values()) + math.ceil(speed * _DELIVERY_S) + 1
    tail = EventTail(folder.path, folder.read_plan(), logs=False)
    try:
        asked_at = folder.clock.now()
        send_request(folder, ProfileSteps(first=first, steps=steps), new_id("profile"))
        written = wait_for("profiled", folder, tail, set(now), asked_at, time.monotonic() + timeout_s)
    finally:
        tail.close()
    missing = {rank: str(event.data["why"]) for rank, event in written.items() if event.data.get("why")}
    missing |= {rank: f"made no {steps} steps in {timeout_s:g} s" for rank in now if rank not in written}
    profiles = []
    for rank, event in written.items():
        if rank not in missing:
            try:
                profiles.append(_read(folder, rank, event))
            except (OSError, ValueError, UnsafeFileError) as error:
                missing[rank] = f"its profile cannot be read: {error}"
    if not profiles:
        why = "; ".join(f"rank {rank} {each}" for rank, each in sorted(missing.items()))
        raise EngineError("no rank wrote a profile", evidence=why, hint=f"composesim logs --run {folder.name}")
    return Taken(first, tuple(profiles), missing)


def wait_for(
    kind: str, folder: RunFolder, tail: EventTail, ranks: set[int], asked_at: float, deadline: float
) -> dict[int, Event]:
    """Return the event of each rank, until all that run have one, the time is over, or the run is."""
    over, written, ended = end_of(folder), dict[int, Event](), set[int]()
    is_last = False
    while not is_last and not ranks <= {*written, *ended}:
        is_last = over.wait(_POLL_S) or time.monotonic() > deadline
        for event in tail.poll():
            if event.rank is None or not event.node:
                continue
            if event.kind == kind and event.t >= asked_at:
                written[event.rank] = event
            elif event.kind == "rank-exited":
                ended.add(event.rank)
            elif event.kind == "rank-started":
                ended.discard(event.rank)
    return written


def steps_of(folder: RunFolder) -> dict[int, int]:
    """Return the steps that each rank has made in the latest round."""
    pages = list(_pages(folder))
    latest = max((generation for _, generation, _ in pages), default=0)
    return {rank: steps for rank, generation, steps in pages if generation == latest}


def _pages(folder: RunFolder) -> Iterator[tuple[int, int, int]]:
    for name in files_of_nodes(folder.files, "observations", ".progress"):
        _, rank, generation = ["", "", *PurePath(name).stem.rsplit(".", 2)][-3:]
        with suppress(OSError, UnsafeFileError, ValueError):
            yield int(rank), int(generation), ProgressPage.steps_in(folder.files.read_bytes(name))


def _read(folder: RunFolder, rank: int, event: Event) -> Profile:
    file = PurePath(str(event.data.get("file"))).name  # a rank may write anything into an event
    name = f"{folder_of(folder.files, str(event.node))}observations/{file}"
    content = folder.files.read_json(name)
    return Profile(rank, str(event.node), content, float(event.data.get("lag") or 0.0))


_FLIGHT = "observations/flight"
_MAX_BYTES, _MAX_VALUES = 4 << 20, 1_000_000  # of one dump: a pickle of a few bytes can describe far more


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
    data = files.read_bytes(name, size=_MAX_BYTES)
    return pickle.dumps(redaction.value(PlainValues(data).load(), most=_MAX_VALUES), protocol=2)


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
