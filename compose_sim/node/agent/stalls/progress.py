"""Measure whether a rank makes progress: whether it advances a counter of the progress page, computes, or does any I/O.

Waiting takes some work too: a data loader checks its workers every 5 seconds, a script may check for a file ten times per
second. So the work that such waiting takes is subtracted from each kind of work, and only the excess counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ...shared.progress_page import ProgressPage
from . import tcp_counters

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MS = 1_000_000


@dataclass(frozen=True)
class Work:
    """What a process has done so far, in nanoseconds of CPU time and bytes."""

    main_cpu: int  # of the main thread
    main_queued: int  # time in which the main thread could have run but other processes had the processor
    other_cpu: int  # of the other threads
    child_cpu: int  # of all descendants
    moved_bytes: int  # read and written, with children
    faults: int  # pages that the main thread had to wait for


_NETWORK = "network_bytes"  # with children, without connections to the store
_Limits = Mapping[str, tuple[float, float]]

# For each kind of work: how much per second may be due to waiting, and how much more counts as progress. Measured per
# second on a busy 2-core machine: os.path.exists every 0.1 s takes 0.8 ms of CPU time, every 0.01 s 6 ms, reading a small
# file every 0.1 s 1.7 ms, a data loader's wait 0.04 ms. A computation that shares a core with 20 others gets 50 ms, and
# is queued for the other 950 ms.
_LIMITS: _Limits = {
    "main_cpu": (10 * _MS, 30 * _MS),
    "main_queued": (500 * _MS, 500 * _MS),
    "other_cpu": (100 * _MS, 200 * _MS),
    "child_cpu": (50 * _MS, 100 * _MS),
    "moved_bytes": (1 << 10, 4 << 10),
    _NETWORK: (0, 0),
    "faults": (0, 0),
}
_WORK = tuple(kind for kind in _LIMITS if kind != _NETWORK)
# What counts if a thread of a library never sleeps.
_OF_MAIN_THREAD: _Limits = {kind: _LIMITS[kind] for kind in ("main_cpu", "main_queued", "child_cpu", "faults")}
_ON_DEVICE: _Limits = {**_OF_MAIN_THREAD, _NETWORK: (8 << 10, 16 << 10)}  # NCCL exchanges signs of life


class ProgressMeter:
    """Measures the progress of one rank between two calls."""

    def __init__(self, process: int, progress: ProgressPage) -> None:
        """Measure this process, which writes this progress page."""
        self._process, self._progress = process, progress
        self.stands_for = 0  # how many calls ago a counter of the rank advanced; it may have computed since
        self._counters: dict[str, int] | None = None
        self._completed = 0
        self._work: Work | None = None
        self._levels = dict.fromkeys(_LIMITS, 0.0)
        self._measured_at = 0.0
        self._network_bytes: int | None = None
        self._network_measured_at = 0.0
        # If the last call found no progress: whether the network was compared, or does not count.
        self.is_certain = True

    def has_progressed(self, now: float, network: Callable[[], tcp_counters.Totals | None]) -> bool:
        """Return whether the rank has made progress since the last call; the first call returns True."""
        self.is_certain = False
        counters, before = self._progress.counters(), self._counters
        completed, completed_before = self._progress.get("completed"), self._completed
        self._counters, self._completed = counters, completed
        self.stands_for = self.stands_for + 1 if counters == before else 0
        # The rank counts completed collectives only when it is asked: with a GPU at each of these calls, which takes until the second
        # of them, else only for a diagnosis, which would end itself.
        is_counted = self.stands_for > 2 and self._progress.get("on_device")
        if not self.stands_for or (is_counted and completed != completed_before):
            self.forget_work()  # a counter has advanced, so it does not matter
            return True
        work, earlier = work_of(self._process), self._work
        passed, self._measured_at = now - self._measured_at, now
        self._work = work
        if work is None or earlier is None:
            self._levels = dict.fromkeys(_LIMITS, 0.0)
            return False
        found = [self._exceeds_waiting(kind, getattr(work, kind) - getattr(earlier, kind), passed) for kind in _WORK]
        return any(found) or self._has_moved_bytes(now, network)

    def forget_work(self) -> None:
        """Do not count what the rank has done since the last call: it answered the agent."""
        self._work = self._network_bytes = None

    def _has_moved_bytes(self, now: float, network: Callable[[], tcp_counters.Totals | None]) -> bool:
        """Return whether the rank has sent or received more than a sign of life since the last time that this was known."""
        if _NETWORK not in self._limits():
            self.is_certain = True
            return False
        totals = network()
        if totals is None:
            return False
        earlier, passed = self._network_bytes, now - self._network_measured_at
        moved = sum(tcp_counters.bytes_of(each, totals) for each in (self._process, *children_of(self._process)))
        self._network_bytes, self._network_measured_at = moved, now
        self.is_certain = earlier is not None
        return earlier is not None and self._exceeds_waiting(_NETWORK, moved - earlier, passed)

    def _exceeds_waiting(self, kind: str, done: int, passed: float) -> bool:
        """Add what was done to this kind of work, and return whether it is more than waiting takes."""
        if kind not in (limits := self._limits()):
            return False
        drain, limit = limits[kind]
        level = max(0.0, self._levels[kind] + max(0, done) - drain * passed)
        self._levels[kind] = 0.0 if level > limit else level
        return level > limit

    def _limits(self) -> _Limits:
        """Return the kinds of work that count, with their limits."""
        page = self._progress
        if page.get("on_device"):  # the main thread spins while it waits for the GPU, and threads of NCCL all the time
            waits = page.waiting_in() or page.get("pending") or page.get("leaving")
            return {} if waits else _ON_DEVICE
        if page.get("busy_library"):  # then the main thread polls a thousand times a second while it waits
            return {} if page.waiting_in() else _OF_MAIN_THREAD
        return _LIMITS


def work_of(process: int) -> Work | None:
    """Return what a process has done so far, or None if it has ended."""
    try:
        fields = _stat(f"/proc/{process}")
        main = _stat(f"/proc/{process}/task/{process}")
        main_cpu, main_queued = _scheduled(f"/proc/{process}/task/{process}", main)
        children = list(children_of(process))
        own = int(fields[11]) + int(fields[12])
        ended_children = int(fields[13]) + int(fields[14])
        return Work(
            main_cpu=main_cpu,
            main_queued=main_queued,
            other_cpu=max(0, own * _TICK_NS - main_cpu),
            child_cpu=ended_children * _TICK_NS + sum(map(_cpu_of_child, children)),
            moved_bytes=sum(map(_bytes, (process, *children))),
            faults=int(main[9]),
        )
    except (OSError, ValueError, IndexError):
        return None


def children_of(process: int) -> Iterator[int]:
    """Yield the descendants of a process."""
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


def _scheduled(folder: str, fields: list[str]) -> tuple[int, int]:
    """Return for how long a thread has run, and has waited for a processor."""
    try:
        ran, queued, _ = map(int, Path(folder, "schedstat").read_text().split())
        return ran, queued
    except (OSError, ValueError):  # this kernel counts in ticks
        return (int(fields[11]) + int(fields[12])) * _TICK_NS, 0


def _cpu_of_child(process: int) -> int:
    try:
        return sum(map(int, _stat(f"/proc/{process}")[11:15])) * _TICK_NS
    except (OSError, ValueError):
        return 0


def _bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:  # it has ended, or belongs to another user
        return 0
    return sum(int(line.partition(": ")[2]) for line in lines if line.startswith(("rchar", "wchar")))
