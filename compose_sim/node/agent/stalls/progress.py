"""Does a rank move? When a counter of its progress advances, or when it computes, reads, writes or receives, or a child of it does.

Waiting is not free: a data loader looks after its workers every 5 seconds, a script may look for a file ten times a second.
So each kind of work drains away at the pace of such waiting, and only what outruns it counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ...shared.progress_page import ProgressPage
from . import tcp_counters

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MS = 1_000_000


@dataclass(frozen=True)
class Work:
    """What a process had done by a moment. Nanoseconds of CPU, bytes."""

    main_cpu: int  # of its main thread
    other_cpu: int  # of its other threads
    child_cpu: int  # of its children and theirs
    moved_bytes: int  # read and written by it and its children
    network_bytes: int  # its own and its children's, but for what goes to the store
    faults: int  # pages its main thread had to wait for


# Of each kind of work: how much of it, each second, is no more than waiting; and how much more than that is movement.
# Measured on a busy 2-core machine: os.path.exists every 0.1 s takes 0.8 ms of CPU a second, every 0.01 s 6 ms, reading a small
# file every 0.1 s 1.7 ms, a data loader's wait 0.04 ms; a computation that shares a core with 20 others would get 50 ms.
_LIMITS = {
    "main_cpu": (10 * _MS, 30 * _MS),
    "other_cpu": (100 * _MS, 200 * _MS),
    "child_cpu": (50 * _MS, 100 * _MS),
    "moved_bytes": (1 << 10, 4 << 10),
    "network_bytes": (0, 0),
    "faults": (0, 0),
}
_OF_MAIN_THREAD = ("main_cpu", "child_cpu", "faults")  # what is left where a library's thread is never still


class Movement:
    """One rank, looked at from time to time."""

    def __init__(self, process: int, progress: ProgressPage) -> None:
        """A process of this machine, and the page it shares with us."""
        self._process, self._progress = process, progress
        self._counters: dict[str, int] | None = None
        self._work: Work | None = None
        self._levels = dict.fromkeys(_LIMITS, 0.0)
        self._looked_at = 0.0

    def since_last_look(self, now: float, network: Callable[[], tcp_counters.Totals]) -> bool:
        """Whether it has moved. The first look finds that it has. `network` is asked only where it matters."""
        counters, before = self._progress.counters(), self._counters
        self._counters = counters
        if counters != before:
            self._work = None  # whoever advances need not be looked at any closer
            return True
        work, earlier = work_of(self._process, network()), self._work
        passed, self._looked_at = now - self._looked_at, now
        self._work = work
        if work is None or earlier is None:
            self._levels = dict.fromkeys(_LIMITS, 0.0)
            return False
        return self._outruns_waiting(earlier, work, passed)

    def _outruns_waiting(self, earlier: Work, work: Work, passed: float) -> bool:
        moved, kinds = False, tuple(_LIMITS)
        if self._progress.get("talks"):  # and a main thread that waits there looks a thousand times a second
            kinds = () if self._progress.waiting_in() else _OF_MAIN_THREAD
        for kind in kinds:
            drain, limit = _LIMITS[kind]
            done = max(0, getattr(work, kind) - getattr(earlier, kind))
            self._levels[kind] = max(0.0, self._levels[kind] + done - drain * passed)
            if self._levels[kind] > limit:
                self._levels[kind] = 0.0
                moved = True
        return moved


def work_of(process: int, network: tcp_counters.Totals) -> Work | None:
    """What a process has done until now; None where it has ended."""
    try:
        fields = _stat(f"/proc/{process}")
        main = _stat(f"/proc/{process}/task/{process}")
        main_cpu = _cpu(f"/proc/{process}/task/{process}", main)
        children = list(children_of(process))
        own = int(fields[11]) + int(fields[12])
        ended_children = int(fields[13]) + int(fields[14])
        return Work(
            main_cpu=main_cpu,
            other_cpu=max(0, own * _TICK_NS - main_cpu),
            child_cpu=ended_children * _TICK_NS + sum(map(_cpu_of_child, children)),
            moved_bytes=sum(map(_bytes, (process, *children))),
            network_bytes=sum(tcp_counters.bytes_of(each, network) for each in (process, *children)),
            faults=int(main[9]),
        )
    except (OSError, ValueError, IndexError):
        return None


def children_of(process: int) -> Iterator[int]:
    """The children of all its threads, and theirs."""
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            children = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from children_of(child)


def _stat(folder: str) -> list[str]:
    return Path(folder, "stat").read_text().rpartition(")")[2].split()


def _cpu(folder: str, fields: list[str]) -> int:
    try:
        return int(Path(folder, "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):  # a kernel without it counts in ticks
        return (int(fields[11]) + int(fields[12])) * _TICK_NS


def _cpu_of_child(process: int) -> int:
    try:
        return sum(map(int, _stat(f"/proc/{process}")[11:15])) * _TICK_NS
    except (OSError, ValueError):
        return 0


def _bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:  # it has ended, or is another user's
        return 0
    return sum(int(line.partition(": ")[2]) for line in lines if line.startswith(("rchar", "wchar")))
