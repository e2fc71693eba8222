"""Has a node come to a standstill, and where does each of its ranks stand? Decided by looks at them, once a beat, told as events.

A node judges only itself: that its ranks do not move. Whether that is a hang, composesim decides, which hears of all nodes.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from ...shared.event_log import EventLog
from ...shared.frames import is_ours, is_user_code
from ...shared.progress_page import ProgressPage
from . import stack_dump, tcp_counters
from .progress import Movement, children_of
from .stack_dump import Frame, Stack

_SECONDS_TO_WAKE = 2.0  # a helper that has not got the interpreter's lock by then will not get it
_LOOK_SECONDS = 0.05
_LONGEST_BLINK_SECONDS = 3.0
_MOST_FRAMES, _MOST_THREADS, _MOST_WORKERS = 20, 8, 16


class Rank(Protocol):
    """What the agent knows of a rank."""

    rank: int
    pid: int
    ended: bool


class _Subject:
    """One rank under observation."""

    def __init__(self, events: EventLog, process: int, now: float) -> None:
        self.events, self.process = events, process
        self.progress = ProgressPage(events.folder, events.node, events.rank or 0, events.generation or 0)
        self.movement = Movement(process, self.progress)
        self.moved_at = now
        self.told = False
        self.inquiry: Generator[float, None, None] | None = None
        self.continue_at = float("inf")

    def move(self, now: float) -> None:
        self.moved_at = now
        self.inquiry, self.continue_at = None, float("inf")
        if self.told:
            self.told = False
            self.events.emit("resumed")


class Stalls:
    """The ranks of one node. `wake_at` says when it wants to `go_on`, on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        """A node whose ranks have all stood still for so long is asked where they stand; 0 for never."""
        self._seconds = seconds
        self._subjects: dict[int, _Subject] = {}
        self._looked_at = time.monotonic()

    @property
    def wake_at(self) -> float:
        return min((subject.continue_at for subject in self._subjects.values()), default=float("inf"))

    def look(self, events: EventLog, ranks: Sequence[Rank], store_port: int) -> None:
        """Look at all ranks of the present round; to be called at every beat."""
        if not self._seconds:
            return
        now, live = time.monotonic(), [rank for rank in ranks if rank.pid and not rank.ended]
        known, self._subjects = self._subjects, {}
        for rank in live:
            of_rank = events.bind(rank=rank.rank, generation=events.generation)
            self._subjects[rank.pid] = known.get(rank.pid) or _Subject(of_rank, rank.pid, now)
        self._leave_out_what_nobody_saw(now)
        network = lru_cache(maxsize=None)(lambda: tcp_counters.bytes_by_socket(store_port))
        for subject in self._subjects.values():
            if subject.movement.since_last_look(now, network):
                subject.move(now)
        starting = any(not rank.pid and not rank.ended for rank in ranks)
        if not starting and all(now - subject.moved_at >= self._seconds for subject in self._subjects.values()):
            for subject in self._subjects.values():
                if not subject.told and subject.inquiry is None:
                    subject.inquiry, subject.continue_at = _inquire(subject), now

    def _leave_out_what_nobody_saw(self, now: float) -> None:
        """A node that was frozen, or had no processor for a while, was not standing still."""
        unseen = now - self._looked_at
        self._looked_at = now
        if unseen > _LONGEST_BLINK_SECONDS:
            for subject in self._subjects.values():
                subject.moved_at = min(now, subject.moved_at + unseen)

    def go_on(self) -> None:
        """Take the next step of each inquiry that is due."""
        now = time.monotonic()
        for subject in self._subjects.values():
            if subject.inquiry is not None and subject.continue_at <= now:
                pause = next(subject.inquiry, None)
                subject.continue_at = float("inf") if pause is None else now + pause
                if pause is None:
                    subject.inquiry, subject.told = None, True


def _inquire(subject: _Subject) -> Generator[float, None, None]:
    """Ask where a rank stands, and tell; yields seconds to wait."""
    progress, process = subject.progress, subject.process
    doing, awake = stack_dump.what_it_does(process), progress.get("awake")
    helper = progress.get("helper")
    # A stopped rank without a helper would have to be asked through its main thread, which must stay where it is.
    stacks = (
        ()
        if doing == "stopped" and helper in (0, process)
        else (yield from _stacks_of(progress, process, helper or process))
    )
    main = next((stack for stack in stacks if stack.thread == progress.get("main_thread")), None)
    others = [stack for stack in stacks if stack is not main and stack.persons]
    told: dict[str, Any] = {
        "since_s": 0.0,
        "doing": doing,
        "waiting_in": progress.waiting_in(),
        "place": _place(main),
        "frames": _frames(main),
        "threads": [_place(stack) for stack in others[:_MOST_THREADS]],
        "workers": [],
        **progress.counters(),
    }
    if stacks and doing != "stopped" and progress.get("helper") not in (0, process):
        told["locked_in_c"] = not (yield from _has_woken(progress, awake))
    if main and _waits_for_children(main):
        told["workers"] = yield from _workers(progress, process)
    told["since_s"] = round(time.monotonic() - subject.moved_at, 3)
    subject.events.emit("stalled", **told)


def _stacks_of(progress: ProgressPage, process: int, thread: int) -> Generator[float, None, tuple[Stack, ...]]:
    return stack_dump.ask(process, thread, progress.stacks_path, progress.get("descriptor"))


def _has_woken(progress: ProgressPage, before: int) -> Generator[float, None, bool]:
    """Whether the helper got the interpreter's lock after it was signalled."""
    until = time.monotonic() + _SECONDS_TO_WAKE
    while progress.get("awake") == before and time.monotonic() < until:
        yield _LOOK_SECONDS
    return progress.get("awake") != before


def _workers(progress: ProgressPage, process: int) -> Generator[float, None, list[dict[str, Any]]]:
    """Where the processes stand that a rank forked, of those that stand in the person's code."""
    workers: list[dict[str, Any]] = []
    for child in list(children_of(process))[:_MOST_WORKERS]:
        doing = stack_dump.what_it_does(child)
        if doing == "stopped":  # only its own thread could be asked, which the person's code needs
            workers.append({"pid": child, "doing": doing, "place": None})
            continue
        stacks = yield from _stacks_of(progress, child, child)
        stack = next((stack for stack in stacks if stack.current), None)
        if stack and stack.persons and not _idles(stack):
            workers.append({"pid": child, "doing": doing, "place": _place(stack)})
    return workers


def _waits_for_children(stack: Stack) -> bool:
    """Whether a thread stands in what waits for other processes: the data loader, a pool, a join. Only then are they asked."""
    files = ("/torch/utils/data/dataloader.py", "/multiprocessing/", "/concurrent/futures/")
    return any(name in frame.file for frame in stack.frames for name in files)


def _idles(stack: Stack) -> bool:
    """Whether a forked process waits for work: then the person's frames are those that it was forked in."""
    for frame in stack.frames:
        if frame.file.endswith("/multiprocessing/queues.py") or frame.function == "_worker_loop":
            return True
        if is_user_code(frame.file):
            return False
    return False


def _place(stack: Stack | None) -> list[object] | None:
    frame: Frame | None = stack.persons if stack else None
    return frame.place if frame else None


def _frames(stack: Stack | None) -> list[list[object]]:
    """Down to the person's outermost line: what lies below it is ours."""
    frames = stack.frames if stack else ()
    last = max((index for index, frame in enumerate(frames) if is_user_code(frame.file)), default=len(frames))
    told = [frame for frame in frames[: last + 1] if not is_ours(frame.file)]
    return [[frame.file, frame.line, frame.function] for frame in told[:_MOST_FRAMES]]
