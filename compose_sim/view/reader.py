"""Read a run, running or finished, into messages for the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from compose_sim.core.events.events import READ_FROM_LOGS, Event
from compose_sim.core.json_values import to_json
from compose_sim.core.report.bottleneck import rank_times, straggler_line
from compose_sim.core.report.report import Report
from compose_sim.core.state.state import is_on
from compose_sim.core.state.timeline import Message as Sent
from compose_sim.core.state.timeline import Timeline
from compose_sim.core.view.current import current_waits
from compose_sim.core.view.page import Message, PageFold
from compose_sim.core.view.samples import sample_strips
from compose_sim.engine.run_folder.check_inputs import read_observed
from compose_sim.engine.run_folder.clock import read_clock
from compose_sim.engine.run_folder.event_tail import EventTail, FileTail
from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.node_files import NodeFiles
from compose_sim.engine.run_folder.record import report_of
from compose_sim.view.scalars import ScalarFiles
from compose_sim.view.waits import RankWaits

_AROUND = 4  # lines of source before and after the one that a check names
_LARGEST_SOURCE = 1 << 20
_MOST_CHUNKS = 64  # of the records of one rank at a time


class PageReader:
    """Reads what is new in a run's folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._found = NodeFiles(folder.files)
        plan = folder.read_plan()
        self._fold = PageFold(plan)
        self._timeline = Timeline()
        self._events = EventTail(folder.path, plan)
        self._records: dict[str, FileTail] = {}
        self._waits = RankWaits(folder.files, self._found)
        self._clock = read_clock(folder.files)
        self._scalars = ScalarFiles(Path(plan.working_directory)), ScalarFiles(folder.path / "shared")
        self._last = 0.0
        self.is_over = False

    @property
    def sent(self) -> list[Sent]:
        """The messages between ranks so far."""
        return self._timeline.messages

    def read(self) -> Message:
        """Return what is new; the message of a run that is over is the last one."""
        self.is_over = not self.folder.is_claimed()
        self._fold.add_events(self._in_order(self._new_events()))
        for name in self._found.names("observations", ".jsonl"):
            self._read_records(name)
        self._read_scalars()
        if not self.is_over:
            return self._fold.take(report=None, is_over=False, current=self._current(), **self._rank_times())
        self._fold.add_spans(self._timeline.finish())
        self.close()
        report = report_of(self.folder)
        samples = sample_strips(read_observed(self.folder.path, self._fold.state))
        sources = read_sources(report, self._fold.plan.working_directory)
        return self._fold.take(report=report, is_over=True, samples=samples, sources=sources, **self._rank_times())

    def _current(self) -> dict[int, list[Any]]:
        """Return what ranks wait in at this moment, unless they run on other machines, whose memory this one does not see."""
        if self._fold.plan.engine == "slurm":
            return {}
        state = self._fold.state
        waits, halted = self._waits.read(state)
        return current_waits(state, waits, self._timeline.members, now=self._clock.now(), halted=halted)

    def _rank_times(self) -> dict[str, Any]:
        times = rank_times(self._timeline.tallies)
        return {"rank_times": [to_json(each) for each in times], "straggler": straggler_line(times)}

    def _new_events(self) -> list[Event]:
        return [event for batch in self._events.finish() for event in batch] if self.is_over else self._events.poll()

    def close(self) -> None:
        """Close the files."""
        self._events.close()
        self._waits.close()
        for tail in self._records.values():
            tail.close()
        self._records.clear()

    def _in_order(self, events: list[Event]) -> Iterator[Event]:
        """Yield events; lines of logs are not later than the last event."""
        stamped = [event for event in events if event.kind not in READ_FROM_LOGS]
        self._last = max([self._last, *(event.t for event in stamped)])
        yield from stamped
        for event in events:
            if event.kind in READ_FROM_LOGS:
                yield replace(event, t=min(event.t, self._last))

    def _read_scalars(self) -> None:
        """Take what ranks wrote for TensorBoard; a file is named after the host and process that writes it."""
        since = self._fold.state.started_at
        if since is None:
            return
        for files in self._scalars:
            for host, process, scalars in files.read(since, is_over=self.is_over):
                rank = self._fold.writers.get((host, process))
                for tag, step, value in scalars:
                    self._fold.add_metrics(rank, step, {tag: value})

    def _read_records(self, name: str) -> None:
        node, rank, generation = ["", "", *PurePath(name).stem.rsplit(".", 2)][-3:]
        if not (rank.isdecimal() and generation.isdecimal()):
            return
        if not is_on(self._fold.state, node, int(rank), int(generation)):  # or not yet: the round is read next time
            return
        with suppress(OSError, UnsafeFileError):
            tail = self._records.get(name)
            if tail is None:
                tail = self._records[name] = FileTail(self.folder.files, name)
            for _ in range(_MOST_CHUNKS):
                if not (lines := tail.read()):
                    break
                spans = self._timeline.add(int(rank), int(generation), (line for _, line in lines))
                self._fold.add_spans(spans)


def read_sources(report: Report, folder: str) -> dict[str, Any]:
    """Return the lines around the places that problems name, as far as they are in the run's working folder."""
    places = [result.place for result in report.checks if result.is_problem and result.place]
    sources = {}
    for place in places:
        lines = _read_source(place.file, folder) if place.line else None
        if lines and place.line and place.line <= len(lines):
            first = max(1, place.line - _AROUND)
            sources[f"{place.file}:{place.line}"] = [first, lines[first - 1 : place.line + _AROUND]]
    return sources


def _read_source(file: str, folder: str) -> list[str] | None:
    """Return the lines of a Python file; None if it is elsewhere, as ranks can write any path into their records."""
    try:
        descriptor = os.open(Path(folder, file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as opened:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()  # after all symbolic links
        if path.suffix != ".py" or not path.is_relative_to(os.path.realpath(folder)):
            return None
        return opened.read(_LARGEST_SOURCE).decode("utf-8", "replace").splitlines()
