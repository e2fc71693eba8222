"""Read what is new in a run: lines added to event files and logs, as events in order of time."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path, PurePath

from compose_sim.core.events.events import Event, parse_file_event, parse_metric, printable
from compose_sim.core.events.scalars import printed_numbers
from compose_sim.core.plan.model import DRIVER, Plan
from compose_sim.engine.run_folder.folder import read_clock
from compose_sim.engine.run_folder.node_files import OWN_EVENTS, NodeFiles
from compose_sim.engine.run_folder.safe_files import SafeFolder, UnsafeFileError
from compose_sim.node.shared.rank_logs import STAMP

_CHUNK = 1 << 20  # bytes read from one file at a time, so that one rank with much output does not delay the others
_ALL_CHUNKS = 4 << 20  # of all logs at a time: each line becomes an object of ten times its size
_MIN_CHUNK = 16 << 10  # bytes
# Of one event file in one poll: a node may write faster than this process reads, and a run must still end in time.
_EVENT_CHUNK, _MAX_AT_ONCE = 128 << 10, 8 << 20  # bytes
_BYTES_OF_LINE = 400  # what a line costs in addition to its text
_MAX_EVENTS_LEFT = 64 << 20  # bytes of one event file that are still read at the end
_LONGEST_LINE = 1 << 20  # bytes; a longer line is cut
_POLL_S = 0.05
_MAX_ROUNDS = 10_000  # of one log


class FileTail:
    """Reads the lines added to one file, with offsets. A last line without a newline is held back until it is complete."""

    def __init__(self, files: SafeFolder, name: str, *, last: int | None = None) -> None:
        """Begin at the first line that begins in the `last` bytes, if given."""
        self.stem = Path(name).stem
        self._file = os.fdopen(files.open_file(name), "rb", buffering=0)
        self._rest = b""
        self._at = 0 if last is None else max(0, os.fstat(self._file.fileno()).st_size - last)
        self._is_torn = self._at > 0
        self._file.seek(self._at)
        self._end: int | None = None

    def read(self, most: int = _CHUNK) -> list[tuple[int, str]]:
        left = most if self._end is None else self._end - self._file.tell()
        data = self._file.read(min(most, left))
        if not data:
            return []
        if not data.strip(b"\0"):
            self._skip_hole()
        *lines, self._rest = (self._rest + data).split(b"\n")
        complete = [(self._advance(len(line) + 1), line.decode("utf-8", "replace")) for line in lines]
        if self._is_torn and complete:
            del complete[0]
            self._is_torn = False
        return complete + (self.finish() if len(self._rest) > _LONGEST_LINE else [])

    def stop_at_end(self, most: int | None = None) -> None:
        """Read what the file holds now, up to this many bytes."""
        at = self._file.tell()
        self._end = max(at, os.fstat(self._file.fileno()).st_size)
        if most is not None:
            self._end = min(self._end, at + most)

    def finish(self) -> list[tuple[int, str]]:
        """Return the last line if it has no newline."""
        rest, self._rest = self._rest, b""
        return [(self._advance(len(rest)), rest.decode("utf-8", "replace"))] if rest else []

    def close(self) -> None:
        self._file.close()

    def _skip_hole(self) -> None:
        """Go to where a sparse file has data again: a rank can make a hole of terabytes in no time."""
        at = self._file.tell()
        try:
            data_at = os.lseek(self._file.fileno(), at, os.SEEK_DATA)
        except OSError:  # the rest is a hole
            data_at = os.fstat(self._file.fileno()).st_size
        data_at = max(at, data_at if self._end is None else min(data_at, self._end))
        self._file.seek(data_at)
        self._at += data_at - at

    def _advance(self, size: int) -> int:
        """Return the current offset, and advance it."""
        begins_at, self._at = self._at, self._at + size
        return begins_at


class EventTail:
    """
    Follows a run's folder from the beginning.

    A line of a rank's output becomes a `log` event (data: line), and also a `metric` event if it contains one, or a `numbers`
    event if it contains numbers of another form (data: step, values).
    The time of a log line is when the node read it from the rank, or else when it was read here. The round is the one in which it
    was printed: before the first line of a round, a node logs an event with the offset at which the round begins in the log of each
    rank.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan | None,
        *,
        logs: bool = True,
        numbers: bool = True,
        last: int | None = None,
        own: Callable[[], list[Event]] | None = None,
    ) -> None:
        """
        Follow the files of the nodes and ranks of a plan; of any, if there is no plan. Without `logs`, no output is read; without
        `numbers`, it is not searched for them, which takes longer than reading it; with `last`, these last bytes of each log are read.

        The process that runs the run takes its own events from `own`, as nodes of the local engine could write to their file. There
        it reads only that another process interrupts the run.
        """
        self._files = SafeFolder(folder)
        self._found = NodeFiles(self._files, plan)
        self._has_noted = False
        self._clock = read_clock(self._files)
        self._logs, self._numbers, self._last, self._own = logs, numbers, last, own
        self._event_tails: dict[str, FileTail] = {}
        self._log_tails: dict[str, FileTail] = {}
        self._finishing = False
        self._rounds: dict[str, dict[int, int]] = {}  # log's stem -> generation -> offset
        self._stamps: dict[str, _Stamps] = {}  # by the log's stem

    def poll(self) -> list[Event]:
        """Return the new events, oldest first."""
        return self._collect(final=False)

    def finish(self) -> Iterator[list[Event]]:
        """Yield, in batches, what is left once all writers have exited, including incomplete last lines."""
        yield self.poll()
        # What a process that outlived the run adds from now on is not read, or this might never end.
        self._finishing = True
        for tail in self._log_tails.values():
            tail.stop_at_end()
        for tail in self._event_tails.values():
            tail.stop_at_end(_MAX_EVENTS_LEFT)
        while new := self.poll():
            yield new
        yield self._collect(final=True)

    def close(self) -> None:
        """Close the files."""
        for tail in self._tails:
            tail.close()
        for stamps in self._stamps.values():
            stamps.close()
        self._event_tails.clear()
        self._log_tails.clear()

    @property
    def _tails(self) -> list[FileTail]:
        return [*self._event_tails.values(), *self._log_tails.values()]

    def _collect(self, *, final: bool) -> list[Event]:
        # Logs first: the events read afterwards then contain the round of every log line.
        if self._logs:
            self._open(self._log_tails, lambda: self._found.names("logs", ".log"))
        most = min(_CHUNK, max(_ALL_CHUNKS // max(len(self._log_tails), 1), _MIN_CHUNK))
        printed = [(tail.stem, tail.finish() if final else tail.read(most)) for tail in self._log_tails.values()]
        now = self._clock.now()
        # Then that a node has stopped: what it wrote before is in the files by now.
        events = self._own() if self._own else []
        self._open(self._event_tails, self._found.event_files)
        # The master last: a round has then been read before what nodes do in it.
        for tail in sorted(self._event_tails.values(), key=lambda tail: tail.stem == "master"):
            told = 0
            while told < _MAX_AT_ONCE:
                lines = tail.finish() if final else tail.read(_EVENT_CHUNK) or tail.read()  # a long line
                if not lines:
                    break
                told += sum(len(line) + _BYTES_OF_LINE for _, line in lines)
                events += [event for event in _parsed(tail.stem, lines) if not self._is_own(tail.stem, event)]
        self._note_rounds(events)
        if events and self._found.strays and not self._has_noted:
            self._has_noted = True
            note = (
                f"files in '{self._found.strays}' are ignored: they are not named after the nodes and ranks of this run"
            )
            events.append(Event(t=events[-1].t, kind="note", data={"message": note}))
        for stem, lines in printed:
            rounds = sorted((begins_at, each) for each, begins_at in self._rounds.get(stem, {}).items())
            found = _log_events(stem, lines, rounds, self._stamps.get(stem), now)
            for event in found:
                events.append(event)
                if self._numbers and (numbers := _numbers_in(event)):
                    events.append(numbers)
        events.sort(key=lambda event: (event.t, event.node != "master"))
        return events

    def _is_own(self, writer: str, event: Event) -> bool:
        interrupts = event.kind == "stopping" and event.data.get("reason") == "interrupted"
        return self._own is not None and writer == PurePath(OWN_EVENTS).stem and not interrupts

    def _note_rounds(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == "rendezvous" and event.generation is not None:
                for rank, begins_at in (event.data.get("logs") or {}).items():
                    rounds = self._rounds.setdefault(f"{event.node}.{rank}", {})
                    if event.generation in rounds or len(rounds) < _MAX_ROUNDS:
                        rounds[event.generation] = int(begins_at)

    def _open(self, tails: dict[str, FileTail], find: Callable[[], list[str]]) -> None:
        """Open new files. What a node has replaced or made unreadable since it was opened stays open."""
        with suppress(UnsafeFileError, PermissionError):
            for name in () if self._finishing else find():
                if name not in tails:
                    with suppress(UnsafeFileError, PermissionError, FileNotFoundError):
                        is_log = name.endswith(".log")
                        tail = tails[name] = FileTail(self._files, name, last=self._last if is_log else None)
                        if is_log:
                            self._stamps[tail.stem] = _Stamps(self._files, name.removesuffix("log") + "times")


def poll_interval(started: float) -> float:
    """Return how long to wait after a poll that began at `started` (monotonic), so that polling takes at most a fifth of the time."""
    return max(_POLL_S, 4 * (time.monotonic() - started))


def _parsed(writer: str, lines: list[tuple[int, str]]) -> list[Event]:
    return [event for event in (parse_file_event(line, writer) for _, line in lines) if event]


class _Stamps:
    """When the output of a rank was read, by offset in its log; offsets are asked for in order."""

    def __init__(self, files: SafeFolder, name: str) -> None:
        self._file = os.fdopen(files.open_file(name), "rb", buffering=0)
        self._rest = b""
        self._known = deque[tuple[int, float]]()
        self._last = -1  # offset
        self._is_valid = True

    def time_of(self, offset: int, now: float) -> float:
        """Return the time of what begins at an offset; `now` if nothing is known."""
        while len(self._known) < 2 or self._known[1][0] <= offset:
            if len(self._known) > 1:
                self._known.popleft()
            elif not self._read():
                break
        return min(now, self._known[0][1]) if self._known and self._known[0][0] <= offset else now

    def close(self) -> None:
        self._file.close()

    def _read(self) -> bool:
        """Read further stamps. Offsets that do not increase end the file: a rank may write anything, and holes cost nothing."""
        data = self._rest + (self._file.read(_CHUNK) or b"") if self._is_valid else b""
        whole = len(data) - len(data) % STAMP.size
        self._rest = data[whole:]
        for offset, t in STAMP.iter_unpack(data[:whole]):
            if offset <= self._last or not math.isfinite(t):
                self._is_valid = False
                break
            self._last = offset
            self._known.append((offset, t))
        return self._is_valid and whole > 0


def _log_events(
    stem: str, lines: list[tuple[int, str]], rounds: list[tuple[int, int]], stamps: _Stamps | None, now: float
) -> Iterator[Event]:
    """
    Yield the lines in the log of a rank; `node-0.3` is rank 3 on node-0.

    `node-0` alone is the log of the node's agent, which is not the script's output. The driver's log has a number but no rank.
    """
    node, _, rank_text = stem.partition(".")
    if not rank_text.isdecimal():
        return
    rank = None if node == DRIVER else int(rank_text)
    for begins_at, line in lines:
        line, t = printable(line), stamps.time_of(begins_at, now) if stamps else now
        # If two rounds begin at the same offset, nothing was printed in the earlier one.
        at = bisect_right(rounds, begins_at, key=itemgetter(0))
        generation = rounds[at - 1][1] if at else None
        yield Event(t=t, kind="log", node=node, rank=rank, generation=generation, data={"line": line})


def _numbers_in(log: Event) -> Event | None:
    """Return the metric or the other numbers on the line of a `log` event."""
    line = log.data["line"]
    kind, data = "metric", parse_metric(line)
    if not data and (numbers := printed_numbers(line)):
        kind, data = "numbers", {"step": numbers[0], "values": numbers[1]}
    return (
        Event(t=log.t, kind=kind, node=log.node, rank=log.rank, generation=log.generation, data=data) if data else None
    )
