"""Detect that the ranks of a node make no progress, and report what each of them is doing.

A node only judges its own ranks. composesim, which knows all nodes, decides whether they hang.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, Callable

from ...shared.event_log import EventLog
from ...shared.frames import is_ours, is_user_code
from ...shared.progress_page import ProgressPage
from ...shared.regular_files import read_regular
from ..launchers import RankProcess
from . import stack_dump, tcp_counters
from .progress import ProgressMeter, children_of
from .stack_dump import Stack

_NEVER = float("inf")
_DUMP_SECONDS = 2.0
_POLLS_BETWEEN_SIGNALS = 10
_GIL_SECONDS = 2.0  # a helper thread that has not got the interpreter's lock by then never will
_POLL_SECONDS = 0.05
_MAX_LOOKS = 20
_MAX_BYTES = 4 << 20  # of the list of collectives that have not completed
_LONGEST_GAP_SECONDS = 3.0  # between two checks; after a longer one, this node itself was suspended
_MAX_FRAMES, _MAX_THREADS, _MAX_WORKERS = 20, 8, 16


class _WatchedRank:
    def __init__(self, events: EventLog, process: int, now: float) -> None:
        self.events, self.process = events, process
        self.progress = ProgressPage(events.folder, events.node, events.rank or 0, events.generation or 0)
        self.meter = ProgressMeter(process, self.progress)
        self.progressed_at = now
        self.reported = self.is_halted = False
        self.diagnosis: Generator[float, None, None] | None = None
        self.continue_at = _NEVER
        self.asked_at = -1  # what the helper thread had counted when it was last asked

    def ask(self) -> None:
        """Ask a rank that uses a GPU whether a collective is pending, unless it has not answered yet."""
        awake = self.progress.get("awake")
        if self.progress.get("on_device") and not (awake == self.asked_at or self.diagnosis or self.reported):
            self.asked_at = awake
            _ask(self.progress, self.process)

    def note_halt(self, halted: bool) -> None:
        """Note whether the rank is stopped, such as by SIGSTOP: it cannot say so itself."""
        if halted != self.is_halted:
            self.is_halted = halted
            self.progress.set("halted", int(halted))
            self.events.emit("halted" if halted else "continued")

    def is_at_rest(self, now: float, seconds: float) -> bool:
        return now - self.progressed_at >= seconds and (self.meter.is_certain or self.reported)

    def progressed(self, now: float) -> None:
        self.progressed_at = now
        self.diagnosis, self.continue_at = None, _NEVER
        if self.reported:
            self.reported = False
            self.events.emit("resumed")


class StallDetector:
    """Watches the ranks of one node. Call `poll` at `wake_at`, on the monotonic clock, at the latest."""

    def __init__(self, seconds: float) -> None:
        """Report the ranks once none of them has made progress for this long; 0: never."""
        self._seconds = seconds
        self._ranks: dict[int, _WatchedRank] = {}  # by process
        self._checked_at = time.monotonic()
        self._network = tcp_counters.TcpCounters()

    @property
    def wake_at(self) -> float:
        return min((rank.continue_at for rank in self._ranks.values()), default=_NEVER)

    def check(self, events: EventLog, ranks: Sequence[RankProcess], store_port: int) -> None:
        """Check the progress of all ranks of the current round; must be called at every heartbeat."""
        if not self._seconds:
            return
        now, known, self._ranks = time.monotonic(), self._ranks, {}
        for rank in ranks:
            if rank.pid and not rank.ended:
                of_rank = events.bind(rank=rank.rank, generation=events.generation)
                self._ranks[rank.pid] = known.get(rank.pid) or _WatchedRank(of_rank, rank.pid, now)
        self._ignore_gap(now)
        network = lru_cache(maxsize=None)(lambda: self._network.bytes_by_socket(store_port, now))
        for watched in self._ranks.values():
            if watched.diagnosis is not None:
                watched.meter.forget_work()
            if watched.meter.has_progressed(now, network):
                watched.progressed(now)
            if watched.meter.stands_for:
                watched.ask()
            watched.note_halt(stack_dump.main_thread_state(watched.process) in ("stopped", "traced"))
        starting = any(not rank.pid and not rank.ended for rank in ranks)
        if not starting and all(watched.is_at_rest(now, self._seconds) for watched in self._ranks.values()):
            for watched in self._ranks.values():
                if not watched.reported and watched.diagnosis is None:
                    watched.diagnosis, watched.continue_at = _diagnose(watched), now

    def _ignore_gap(self, now: float) -> None:
        """Do not count the time in which this node was frozen or had no processor."""
        gap = now - self._checked_at
        self._checked_at = now
        if gap > _LONGEST_GAP_SECONDS:
            for watched in self._ranks.values():
                watched.progressed_at = min(now, watched.progressed_at + gap)

    def poll(self) -> None:
        """Continue each diagnosis that is due."""
        now = time.monotonic()
        for watched in self._ranks.values():
            if watched.diagnosis is not None and watched.continue_at <= now:
                pause = next(watched.diagnosis, None)
                watched.continue_at = _NEVER if pause is None else now + pause
                if pause is None:
                    watched.meter.forget_work()
                    watched.diagnosis, watched.reported = None, True


def _diagnose(watched: _WatchedRank) -> Generator[float, None, None]:
    """Find out where a rank is, and report it; yields seconds to wait."""
    stall = yield from inspect_rank(watched.progress, watched.process)
    stall["since_s"] = round(time.monotonic() - watched.progressed_at, 3)
    watched.events.emit("stalled", **stall)


def inspect_rank(
    progress: ProgressPage, process: int, *, may_be_running: bool = False
) -> Generator[float, None, dict[str, Any]]:
    """
    Return where a rank is, and have it dump its flight recorder; yields seconds to wait.

    Stacks of a rank that may be running are only written with the interpreter's lock: without it, they could crash the rank.
    """
    doing = yield from _state_at_rest(process)
    helper = progress.get("helper")
    has_helper = helper not in (0, process)
    stacks: tuple[Stack, ...] = ()
    progress.set("dump_wanted", int(has_helper))
    if has_helper and doing != "stopped":
        stacks = yield from _stacks_by_helper(progress, process)
    has_woken = bool(stacks)
    if not (stacks or may_be_running) and (
        has_helper or doing != "stopped"
    ):  # only the helper thread of a stopped rank may run
        stacks = yield from _stacks_of(progress, process, helper or process)
    main = next((stack for stack in stacks if stack.thread == progress.get("main_thread")), None)
    others = [stack for stack in stacks if stack is not main and stack.user_frame]
    stall: dict[str, Any] = {
        "since_s": 0.0,
        "doing": doing,
        "waiting_in": progress.waiting_in(),
        "place": _place(main),
        "frames": _frames(main),
        "threads": [_place(stack) for stack in others[:_MAX_THREADS]],
        "workers": [],
        "on_device": bool(progress.get("on_device")),
        **progress.counters(),
    }
    if (stacks or may_be_running) and doing != "stopped" and has_helper:
        stall["locked_in_c"] = not has_woken
    if doing != "stopped" and not stall.get("locked_in_c"):
        stall.update((yield from _collectives(progress, process)))
    if main and not may_be_running and _waits_for_children(main):
        stall["workers"] = yield from _workers(progress, process)
    return stall


def _state_at_rest(process: int) -> Generator[float, None, str]:
    """Return what the main thread does when it does not run; a script that waits wakes up now and then to check."""
    for _ in range(_MAX_LOOKS):
        if doing := stack_dump.main_thread_state(process):
            return doing
        yield _POLL_SECONDS
    return ""


def _stacks_of(progress: ProgressPage, process: int, thread: int) -> Generator[float, None, tuple[Stack, ...]]:
    return stack_dump.request(process, thread, progress.stacks_path, progress.get("descriptor"))


def _stacks_by_helper(progress: ProgressPage, process: int) -> Generator[float, None, tuple[Stack, ...]]:
    """Return the stacks that the helper thread writes, or () if it does not get the interpreter's lock."""
    size = progress.stacks_path.stat().st_size if progress.stacks_path.exists() else 0
    progress.set("stacks_wanted", 1)
    _ask(progress, process)
    written = yield from _asked_until(lambda: not progress.get("stacks_wanted"), progress, process, _GIL_SECONDS)
    return stack_dump.read(progress.stacks_path, size) if written else ()


def _ask(progress: ProgressPage, process: int) -> None:
    helper = progress.get("helper")
    if helper not in (0, process):
        stack_dump.wake(process, helper)


def _asked_until(
    condition: Callable[[], bool], progress: ProgressPage, process: int, seconds: float
) -> Generator[float, None, bool]:
    """Return whether the helper thread brings about a condition. Signal it again now and then: it may have been busy."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        for _ in range(_POLLS_BETWEEN_SIGNALS):
            yield _POLL_SECONDS
            if condition():
                return True
        _ask(progress, process)
    return condition()


def _collectives(progress: ProgressPage, process: int) -> Generator[float, None, dict[str, Any]]:
    """Return the collectives that a rank has issued and that have not completed, and how far it has come in each group."""
    written = yield from _asked_until(lambda: not progress.get("dump_wanted"), progress, process, _DUMP_SECONDS)
    if not (written or progress.get("leaving")):  # a rank that leaves wrote them at the end of the script
        return {}
    try:
        found = json.loads(read_regular(progress.pending_path, _MAX_BYTES))
        return {"pending": list(found["pending"]), "reached": dict(found["reached"]), "recent": list(found["recent"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # torch has recorded nothing
        return {}


def _workers(progress: ProgressPage, process: int) -> Generator[float, None, list[dict[str, Any]]]:
    """Return what the processes are doing that a rank forked and that run the user's code."""
    workers: list[dict[str, Any]] = []
    for child in list(children_of(process))[:_MAX_WORKERS]:
        doing = stack_dump.main_thread_state(child)
        if doing == "stopped":  # it has no helper thread, and the main thread must not run
            workers.append({"pid": child, "doing": doing, "place": None})
            continue
        stacks = yield from _stacks_of(progress, child, child)
        stack = next((stack for stack in stacks if stack.current), None)
        if stack and stack.user_frame and not _is_idle(stack):
            workers.append({"pid": child, "doing": doing, "place": _place(stack)})
    return workers


def _waits_for_children(stack: Stack) -> bool:
    """Return whether a thread waits for other processes in a data loader, a pool or a join."""
    files = ("/torch/utils/data/dataloader.py", "/multiprocessing/", "/concurrent/futures/")
    return any(name in frame.file for frame in stack.frames for name in files)


def _is_idle(stack: Stack) -> bool:
    """Return whether a forked process waits for work; the user's frames are then those in which it was forked."""
    for frame in stack.frames:
        if frame.file.endswith("/multiprocessing/queues.py") or frame.function == "_worker_loop":
            return True
        if is_user_code(frame.file):
            return False
    return False


def _place(stack: Stack | None) -> list[object] | None:
    return stack.user_frame.place if stack and stack.user_frame else None


def _frames(stack: Stack | None) -> list[list[object]]:
    """Return the frames from the innermost to the user's outermost one, without ours."""
    frames = stack.frames if stack else ()
    last = max((index for index, frame in enumerate(frames) if is_user_code(frame.file)), default=len(frames))
    shown = [frame for frame in frames[: last + 1] if not is_ours(frame.file)]
    return [[frame.file, frame.line, frame.function] for frame in shown[:_MAX_FRAMES]]
