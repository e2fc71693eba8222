"""What has happened in a run since we last looked? The new lines of its event files and logs, as events in order of time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from compose_sim.core.events import Event, parse_event, parse_metric

_CHUNK = 1 << 20  # bytes read from one file at a time, so that one loud rank cannot starve the others
_PATIENCE_S = 0.05  # how long a person waits for a line at most


class _Tail:
    """The lines added to one file. A last line without its newline waits for the rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self._rest = b""

    def read(self) -> list[str]:
        data = self._file.read(_CHUNK)
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def finish(self) -> list[str]:
        """The last line, if it never got its newline."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "replace")] if rest else []

    def close(self) -> None:
        self._file.close()


class Follower:
    """
    Follows a run's folder, from its beginning.

    A line of a rank's output becomes a `log` event (data: line), and a `metric` event too where it is one.
    The time of a log line is when it was read.
    """

    def __init__(self, folder: Path, *, logs: bool = True) -> None:
        self._folder = folder
        self._logs = logs
        self._tails: dict[str, _Tail] = {}

    def poll(self) -> list[Event]:
        """All that is new, oldest first; an empty list when nothing is."""
        return self._collect(final=False)

    def finish(self) -> list[Event]:
        """What is left once nobody writes any more, torn last lines too."""
        events: list[Event] = []
        while new := self.poll():
            events += new
        return events + self._collect(final=True)

    def close(self) -> None:
        """Let go of the files."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def _collect(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        for tail in self._open_tails("events", ".jsonl"):
            lines = tail.finish() if final else tail.read()
            events += [event for event in map(parse_event, lines) if event]
        if self._logs:
            now = time.time()
            for tail in self._open_tails("logs", ".log"):
                events += _log_events(tail.path.stem, tail.finish() if final else tail.read(), now)
        events.sort(key=lambda event: event.t)
        return events

    def _open_tails(self, name: str, suffix: str) -> Iterator[_Tail]:
        folder = self._folder / name
        try:
            names = sorted(entry.name for entry in folder.iterdir() if entry.suffix == suffix)
        except FileNotFoundError:
            return
        for entry in names:
            key = f"{name}/{entry}"
            if key not in self._tails:
                self._tails[key] = _Tail(folder / entry)
            yield self._tails[key]


def pause_after(started: float) -> float:
    """Seconds to rest after a look that began at `started` (monotonic): short, and never most of our time spent looking."""
    return max(_PATIENCE_S, 4 * (time.monotonic() - started))


def _log_events(stem: str, lines: list[str], now: float) -> Iterator[Event]:
    """`node-0.3` is rank 3 on node-0; `node-0` alone is what the node's agent said, which is not the script's output."""
    node, _, rank_text = stem.partition(".")
    if not rank_text.isdigit():
        return
    rank = int(rank_text)
    for line in lines:
        yield Event(t=now, kind="log", node=node, rank=rank, data={"line": line})
        metric = parse_metric(line)
        if metric:
            yield Event(t=now, kind="metric", node=node, rank=rank, data=metric)
