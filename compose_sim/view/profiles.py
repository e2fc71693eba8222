"""Have all ranks of a running job profile some steps with torch.profiler, and read what they wrote."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import ProfileSteps
from compose_sim.core.view.profiles import Profile
from compose_sim.engine.run_folder.control_requests import new_id, send_request
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.node_files import files_of_nodes, folder_of
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
