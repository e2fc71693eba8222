"""Read a run, running or finished, into messages for the page, with the scalars and the waits of its ranks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from compose_sim.core.events.events import READ_FROM_LOGS, Event, printable
from compose_sim.core.events.scalars import Scalar, read_scalars
from compose_sim.core.json_values import to_json
from compose_sim.core.plan.model import FIRST_NODE
from compose_sim.core.report.bottleneck import rank_times, straggler_of
from compose_sim.core.state.state import ClusterState, is_on
from compose_sim.core.state.timeline import Message as Sent
from compose_sim.core.state.timeline import Timeline
from compose_sim.core.view.page import CurrentWait, Message, PageFold, current_waits, sample_strips
from compose_sim.core.view.thinning import compared
from compose_sim.engine.run_folder.event_tail import EventTail, FileTail
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder, read_clock
from compose_sim.engine.run_folder.node_files import NodeFiles
from compose_sim.engine.run_folder.record import read_observed, report_of
from compose_sim.engine.run_folder.safe_files import SafeFolder, UnsafeFileError
from compose_sim.errors import ComposesimError
from compose_sim.node.shared.progress_page import ProgressPage, WaitIn

_MAX_PAGE_BYTES = 1 << 16  # a page has fewer


class RankWaits:
    """The pages of the ranks of a run."""

    def __init__(self, files: SafeFolder, found: NodeFiles) -> None:
        self._files, self._found = files, found
        self._opened: dict[str, int] = {}

    def read(self, state: ClusterState) -> tuple[dict[int, CurrentWait], set[int], dict[int, str]]:
        """
        Return what ranks wait in, which ranks are stopped, and at which lines the others are.

        All of it was true at one moment: between the first and the second time that pages are read.
        """
        names = self._pages_of(state)
        first = {rank: _wait_in(self._read(name)) for rank, name in names.items()}
        pages = {rank: self._read(name) for rank, name in names.items()}
        waits = {
            rank: CurrentWait(
                printable(each.what),
                each.since / 1e6,
                printable(each.group),
                each.size,
                each.number,
                frozenset(other for other, page in pages.items() if _has_left(page, each)),
            )
            for rank, each in first.items()
            if each is not None and each.since and each == _wait_in(pages[rank])
        }
        lines = {
            rank: printable(line)
            for rank, page in pages.items()
            if rank not in waits and (line := ProgressPage.line_in_page(page))
        }
        return waits, {rank for rank, page in pages.items() if ProgressPage.is_halted_page(page)}, lines

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()

    def _pages_of(self, state: ClusterState) -> dict[int, str]:
        """Return the names of the pages of the ranks that are there, in this round."""
        pages = {}
        for name in self._found.names("observations", ".progress"):
            node, rank, generation = ["", "", *PurePath(name).stem.rsplit(".", 2)][-3:]
            known = state.ranks.get(int(rank)) if rank.isdecimal() else None
            if known and known.node == node and known.phase != "exited" and generation == str(known.generation or 0):
                pages[known.rank] = name
        return pages

    def _read(self, name: str) -> bytes:
        with suppress(OSError, UnsafeFileError):
            if name not in self._opened:
                self._opened[name] = self._files.open_file(name)
            return os.pread(self._opened[name], _MAX_PAGE_BYTES, 0)
        return b""


def _wait_in(page: bytes) -> WaitIn | None:
    with suppress(ValueError):
        return ProgressPage.wait_in_page(page)
    return None


def _has_left(page: bytes, wait: WaitIn) -> bool:
    return ProgressPage.finished_in_page(page, wait.group) >= wait.number > 0


_NAME = re.compile(r"events\.out\.tfevents\.(\d{9,11})\.([\w.-]{1,255}?)\.(\d{1,10})(?:\.\d+)?(?:\.v2)?")
_NOT_SEARCHED = re.compile(r"\..*|__pycache__|node_modules|venv|site-packages")
_DEEPEST, _MAX_FOLDERS, _MAX_FILES = 5, 500, 128
_MAX_BYTES = 4 << 20  # of a file at a time
_SEARCH_EACH_S = 5.0
_EARLIER_S = 2.0  # the name of a file has whole seconds


class ScalarFiles:
    """The event files of one run below one folder."""

    def __init__(self, folder: Path) -> None:
        self._files = SafeFolder(folder)
        self._offsets: dict[str, int] = {}
        self._searched = float("-inf")

    def read(self, since: float, *, is_over: bool) -> Iterator[tuple[str, int, list[Scalar]]]:
        """Yield host name and process id of a writer with new scalars, of files made after `since` (Unix seconds)."""
        if is_over or time.monotonic() - self._searched > _SEARCH_EACH_S:
            self._searched = time.monotonic()
            for name in _found(self._files, since):
                if len(self._offsets) < _MAX_FILES:
                    self._offsets.setdefault(name, 0)
        for name in list(self._offsets):
            made = _NAME.fullmatch(Path(name).name)
            while made and (scalars := self._more(name)):
                yield made[2], int(made[3]), scalars
                if not is_over:
                    break

    def _more(self, name: str) -> list[Scalar]:
        offset = self._offsets.get(name, -1)
        if offset < 0:
            return []
        try:
            scalars, taken = read_scalars(self._files.read_bytes(name, offset=offset, size=_MAX_BYTES))
        except (OSError, UnsafeFileError):
            return []
        except ValueError:  # not what TensorBoard writes
            self._offsets[name] = -1
            return []
        self._offsets[name] = offset + taken
        return scalars


def _found(files: SafeFolder, since: float) -> Iterator[str]:
    waiting, seen = [("", 0)], 0
    while waiting and seen < _MAX_FOLDERS:
        folder, depth = waiting.pop(0)
        seen += 1
        with suppress(OSError, UnsafeFileError):
            above = f"{folder}/" if folder else ""
            for name in files.files(folder):
                made = _NAME.fullmatch(name)
                if made and int(made[1]) >= since - _EARLIER_S:
                    yield above + name
            if depth < _DEEPEST:
                waiting += [
                    (above + name, depth + 1) for name in files.folders(folder) if not _NOT_SEARCHED.fullmatch(name)
                ]


_LARGEST_SOURCE = 1 << 20
_LARGE_LOGS = 1 << 20  # bytes, of all logs
_MAX_CHUNKS = 64  # of the records of one rank at a time


class PageReader:
    """Reads what is new in a run's folder."""

    def __init__(self, folder: RunFolder, *, last: int | None = None) -> None:
        """Read the logs too; with `last`, these last bytes of each."""
        self.folder = folder
        self._found = NodeFiles(folder.files)
        plan = folder.read_plan()
        self._fold = PageFold(plan)
        self._timeline = Timeline()
        self._events = EventTail(folder.path, plan, last=last)
        self._sources = Sources(plan.working_directory)
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

    def much_to_read(self) -> int:
        """Return how many bytes the logs of a run have that is over, if they take long to read; else 0."""
        status = (self.folder.files.status(name) for name in self._found.names("logs", ".log"))
        size = sum(each.st_size for each in status if each)
        return size if size > _LARGE_LOGS and not self.folder.is_claimed() else 0

    def read(self) -> Message:
        """Return what is new; the message of a run that is over is the last one."""
        self.is_over = not self.folder.is_claimed()
        self._fold.add_events(self._in_order(self._new_events()))
        for name in self._found.names("observations", ".jsonl"):
            self._read_records(name)
        self._read_scalars()
        if not self.is_over:
            message = self._fold.take(report=None, is_over=False, **self._current(), **self._rank_times())
            return {**message, "sources": self._sources.named_in(message)}
        self._fold.add_spans(self._timeline.finish())
        self.close()
        report = report_of(self.folder)
        samples = sample_strips(read_observed(self.folder.path, self._fold.state))
        message = self._fold.take(report=report, is_over=True, samples=samples, **self._rank_times())
        other = self.folder.compared
        if is_run_folder(self.folder.path) and other.files.status("report.json"):
            with suppress(OSError, ValueError, ComposesimError):  # a page without it is worth more than none
                message["now"]["against"] = compared(PageReader(other).read())
        return {**message, "sources": self._sources.named_in(message)}

    def _current(self) -> dict[str, dict[int, Any]]:
        """Return what ranks wait in at this moment, or where they are, unless other machines run them, whose memory we do not see."""
        if self._fold.plan.master.name == FIRST_NODE:
            return {"current": {}, "at": {}}
        state = self._fold.state
        waits, halted, lines = self._waits.read(state)
        current = current_waits(state, waits, self._timeline.members, now=self._clock.now(), halted=halted)
        return {"current": current, "at": lines}

    def _rank_times(self) -> dict[str, Any]:
        times = rank_times(self._timeline.tallies)
        return {"rank_times": [to_json(each) for each in times], "straggler": to_json(straggler_of(times))}

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
        """Yield events; lines of logs whose times are not known are no later than the last event of a run that is over."""
        stamped = [event for event in events if event.kind not in READ_FROM_LOGS]
        self._last = max([self._last, *(event.t for event in stamped)])
        yield from stamped
        for event in events:
            if event.kind in READ_FROM_LOGS:
                yield replace(event, t=self._last) if self.is_over and event.t > self._last else event

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
            for _ in range(_MAX_CHUNKS):
                if not (lines := tail.read()):
                    break
                spans = self._timeline.add(int(rank), int(generation), (line for _, line in lines))
                self._fold.add_spans(spans)
                self._fold.add_lines(self._timeline.lines)
                self._timeline.lines.clear()


_IN_TEXT, _IN_TRACEBACK = (
    re.compile(r"\(([^()]{1,300}), line (\d{1,7})\)"),
    re.compile(r'File "([^"]{1,300})", line (\d{1,7})'),
)
_AROUND = 60  # lines of a long file before the first line that is named, and after the last one
_LONG_FILE, _MAX_FILES_SHOWN = 800, 32  # lines, and files


class Sources:
    """The source files that messages name, as far as they are Python files in the run's working folder; each is read once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known = set[str]()

    def named_in(self, message: Message) -> list[list[Any]]:
        """Return, of each further file, its name, the number of the first line that is shown, and the lines."""
        named: dict[str, list[int]] = {}
        for file, line in _places(message):
            if file not in self._known:
                named.setdefault(file, []).append(line)
        found: list[list[Any]] = []
        for file, numbers in named.items():
            if len(self._known) == _MAX_FILES_SHOWN:
                break
            self._known.add(file)
            lines = read_source(file, self._folder) or []
            numbers = [number for number in numbers if 0 < number <= len(lines)]
            if numbers:
                is_long = len(lines) > _LONG_FILE
                first = max(1, min(numbers) - _AROUND) if is_long else 1
                found.append([file, first, lines[first - 1 :][: _LONG_FILE if is_long else None]])
        return found


def _places(message: Message) -> Iterator[tuple[str, int]]:
    """Yield the file and line of whatever a message names."""
    now = message["now"]
    for each in (*now["checks"], *now["hints"]):
        if each["place"]:
            yield each["place"]["file"], each["place"]["line"] or 1
    hang, cause = now["hang"] or {"ranks": []}, now["cause"] or {}
    yield from ((file, line) for rank in hang["ranks"] for file, line, *_ in rank["frames"])
    places = (each.rpartition(":") for each in now.get("at", {}).values())
    yield from ((file, int(line)) for file, _, line in places if line.isdecimal())
    texts = [*message["texts"], *(wait[1] for wait in now.get("current", {}).values()), cause.get("message") or ""]
    patterns = [(_IN_TEXT, text) for text in texts] + [(_IN_TRACEBACK, cause.get("traceback") or "")]
    for pattern, text in patterns:
        yield from ((file, int(line)) for file, line in pattern.findall(text))


def read_source(file: str, folder: str) -> list[str] | None:
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
