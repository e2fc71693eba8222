"""What has happened in a run since we last looked? The new lines of its event files and logs, as events in order of time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from compose_sim.core.events.events import Event, parse_event, parse_metric
from compose_sim.core.state.fold_driver import NODE as DRIVER

_CHUNK = 1 << 20  # bytes read from one file at a time, so that one loud rank cannot starve the others
_PATIENCE_S = 0.05  # how long a person waits for a line at most


class _Tail:
    """The lines added to one file, each with the byte that it begins at. A last line without its newline waits for the rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self._rest = b""
        self._at = 0

    def read(self) -> list[tuple[int, str]]:
        data = self._file.read(_CHUNK)
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [(self._pass(len(line) + 1), line.decode("utf-8", "replace")) for line in lines]

    def finish(self) -> list[tuple[int, str]]:
        """The last line, if it never got its newline."""
        rest, self._rest = self._rest, b""
        return [(self._pass(len(rest)), rest.decode("utf-8", "replace"))] if rest else []

    def close(self) -> None:
        self._file.close()

    def _pass(self, size: int) -> int:
        """Go on by so many bytes: where they begin."""
        begins_at, self._at = self._at, self._at + size
        return begins_at


class Follower:
    """
    Follows a run's folder, from its beginning.

    A line of a rank's output becomes a `log` event (data: line), and a `metric` event too where it is one.
    The time of a log line is when it was read, its round the one in which it was printed: a node says where in its ranks' logs each
    round begins, before the round's first line.
    """

    def __init__(self, folder: Path, *, logs: bool = True) -> None:
        self._folder = folder
        self._logs = logs
        self._tails: dict[str, _Tail] = {}
        self._rounds: dict[str, list[tuple[int, int]]] = {}  # of a log's stem: (first byte, generation), in order

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
        # Logs first: the round of whatever is found in them is then known when the events have been read.
        logs = self._open_tails("logs", ".log") if self._logs else ()
        printed = [(tail.path.stem, tail.finish() if final else tail.read()) for tail in logs]
        now = time.time()
        events: list[Event] = []
        for tail in self._open_tails("events", ".jsonl"):
            events += _parsed(tail.finish() if final else tail.read())
            while not final and (lines := tail.read()):
                events += _parsed(lines)
        self._note_rounds(events)
        for stem, lines in printed:
            events += _log_events(stem, lines, self._rounds.get(stem, []), now)
        events.sort(key=lambda event: event.t)
        return events

    def _note_rounds(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == "rendezvous" and event.generation is not None:
                for rank, begins_at in (event.data.get("logs") or {}).items():
                    rounds = self._rounds.setdefault(f"{event.node}.{rank}", [])
                    rounds.append((int(begins_at), event.generation))
                    rounds.sort()

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


def _parsed(lines: list[tuple[int, str]]) -> list[Event]:
    return [event for event in (parse_event(line) for _, line in lines) if event]


def _log_events(stem: str, lines: list[tuple[int, str]], rounds: list[tuple[int, int]], now: float) -> Iterator[Event]:
    """
    `node-0.3` is rank 3 on node-0; `node-0` alone is what the node's agent said, which is not the script's output.

    The driver has no rank: its log's number is that of its only output.
    """
    node, _, rank_text = stem.partition(".")
    if not rank_text.isdigit():
        return
    rank = None if node == DRIVER else int(rank_text)
    for begins_at, line in lines:
        # Of two rounds that begin at the same byte the earlier one printed nothing.
        generation = next((each for first, each in reversed(rounds) if first <= begins_at), None)
        yield Event(t=now, kind="log", node=node, rank=rank, generation=generation, data={"line": line})
        metric = parse_metric(line)
        if metric:
            yield Event(t=now, kind="metric", node=node, rank=rank, generation=generation, data=metric)
