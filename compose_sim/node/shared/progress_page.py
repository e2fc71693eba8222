"""Share counters between a rank and the agent in a page of memory: the agent sees progress without asking the rank.

A rank that is stopped, or that holds the interpreter's lock in C, cannot run our code. It does not need to: it has
already written the page, and the page, part of a mapped file, outlives the rank.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

# Both are handled by rank/stack_signal.py: the first makes a rank write its stacks, the second wakes its helper thread.
STACKS_SIGNAL, WAKE_SIGNAL = signal.SIGRTMAX - 3, signal.SIGRTMAX - 5
_COUNTERS = ("steps", "collectives", "batches")
_OF_STACKS = ("main_thread", "helper", "descriptor", "awake")  # set by rank/stack_signal.py
_OF_LIBRARIES = ("busy_library",)  # 1: a thread of a library exchanges messages all the time, even without progress
_OF_DEVICE = (  # set by rank/flight_recorder.py when the agent asks, except the first and the last
    "stacks_wanted",  # 1: the agent wants the stacks; 0 once they are written by rank/stack_signal.py
    "on_device",  # 1: collectives run on a GPU, and the main thread spins while it waits for them
    "pending",  # the number of groups with a collective that has not completed
    "completed",  # the number of collectives that have
    "dump_wanted",  # 1: the agent wants a dump; 0 once it is written
    "leaving",  # 1: the rank destroys a process group, or its script has ended
)
_OF_PROFILES = ("profile_first", "profile_steps")  # the steps to profile, set by the agent; no steps once it is over
_OF_WAITS = ("waiting_since", "waiting_size", "waiting_number")  # see WaitIn
_OF_AGENT = ("halted",)  # set by the agent: 1 while the rank is stopped, by SIGSTOP or a debugger
_SIZE = 4096
_WAITING_AT, _WAITING_BYTES = 64, 1024
_GROUP_AT, _GROUP_BYTES = 1152, 512
_FINISHED_AT, _FINISHED_SLOTS = (
    1792,
    16,
)  # the number of the last wait of a group, below its checksum; groups may share a slot
_STACKS_AT = 2048
_LINE_AT, _LINE_BYTES = 3072, 1000
_OFFSETS = {
    **{name: 8 * (1 + index) for index, name in enumerate(_COUNTERS)},
    **{
        name: _STACKS_AT + 8 * index
        for index, name in enumerate(_OF_STACKS + _OF_LIBRARIES + _OF_DEVICE + _OF_PROFILES + _OF_WAITS + _OF_AGENT)
    },
}
_counter = struct.Struct("=Q")
_waits = struct.Struct("=QQQ")  # the numbers of a WaitIn
_length = struct.Struct("=H")


class WaitIn(NamedTuple):
    """What a rank waits for other ranks in."""

    what: str  # such as `all_reduce #12 (train.py, line 40)`
    since: int = 0  # Unix microseconds; 0: it still computes, as in the backward pass of DDP
    group: str = ""  # as in `records/timings.py`, and so are the next two
    size: int = 0
    number: int = 0


class ProgressPage:
    """The page of one rank in one round, written by the rank and read by the agent."""

    def __init__(self, folder: Path, node: str, rank: int, generation: int) -> None:
        """Map the page. If that fails, the rank's progress is not seen."""
        self.path = folder / "observations" / f"{node}.{rank}.{generation}.progress"
        self.flight_path = folder / "observations" / "flight" / f"rank_{rank}"  # of the flight recorder
        self._page: Any = bytearray(_SIZE)
        self._what: str | None = None  # the texts in the page, if they are ours
        self._group: str | None = None
        self._bytes = 0  # of the first
        try:
            self.path.parent.mkdir(exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(file, 0, _SIZE)  # touching a hole on a full disk would end the rank with SIGBUS
                self._page = _map(file)
            finally:
                os.close(file)
        except OSError:
            pass

    @property
    def stacks_path(self) -> Path:
        """The file for the rank's stacks."""
        return self.path.with_suffix(".stacks")

    @property
    def pending_path(self) -> Path:
        """The file for the collectives that the rank has issued and that have not completed."""
        return self.path.with_suffix(".pending")

    def advance(self, name: str) -> None:
        """Increment one of `steps`, `collectives` and `batches`."""
        self.set(name, self.get(name) + 1)

    def set(self, name: str, value: int) -> None:
        """Set a number for the agent to read."""
        _counter.pack_into(self._page, _OFFSETS[name], value)

    def get(self, name: str) -> int:
        """Return a number, which is 0 if it was never set."""
        value: int = _counter.unpack_from(self._page, _OFFSETS[name])[0]
        return value

    def counters(self) -> dict[str, int]:
        """Return the counters."""
        return {name: self.get(name) for name in _COUNTERS}

    @staticmethod
    def steps_in(page: bytes) -> int:
        """Return the steps in a page that was read from its file; raises ValueError if it is not a page."""
        _check(page)
        steps: int = _counter.unpack_from(page, _OFFSETS["steps"])[0]
        return steps

    @staticmethod
    def wait_in_page(page: bytes) -> WaitIn | None:
        """Return what the rank of a page that was read from its file waits in; raises ValueError if it is not a page."""
        _check(page)
        what = _text(page, _WAITING_AT, _WAITING_BYTES)
        since, size, number = (_counter.unpack_from(page, _OFFSETS[name])[0] for name in _OF_WAITS)
        return WaitIn(what, since, _text(page, _GROUP_AT, _GROUP_BYTES), size, number) if what else None

    @staticmethod
    def is_halted_page(page: bytes) -> bool:
        """Return whether the rank of a page that was read from its file is stopped."""
        return len(page) == _SIZE and bool(_counter.unpack_from(page, _OFFSETS["halted"])[0])

    def wait_in(self, wait: WaitIn) -> None:
        """Set what the rank waits for other ranks in. A text that is there from the last wait is not written again."""
        _length.pack_into(self._page, _WAITING_AT, 0)  # never combine the old length with the new text
        what, since, group, size, number = wait
        _waits.pack_into(self._page, _OFFSETS[_OF_WAITS[0]], since, size, number)
        if group != self._group:
            self._group = group
            self._write(_GROUP_AT, group.encode()[:_GROUP_BYTES])
        if what != self._what:
            self._what, text = what, what.encode()[:_WAITING_BYTES]
            self._bytes = len(text)
            self._page[_WAITING_AT + 2 : _WAITING_AT + 2 + len(text)] = text
        _length.pack_into(self._page, _WAITING_AT, self._bytes)

    def finish(self, group: str, number: int) -> None:
        """Note that the rank has left a wait of a group, and waits in nothing."""
        code, at = _slot_of(group)
        _counter.pack_into(self._page, at, code << 32 | number & 0xFFFFFFFF)
        _length.pack_into(self._page, _WAITING_AT, 0)

    def at_line(self, place: tuple[str, int] | None) -> None:
        """Set the file and line of the script that the rank runs; None while it waits for other ranks."""
        _length.pack_into(self._page, _LINE_AT, 0)
        if place:
            self._write(_LINE_AT, f"{place[0]}:{place[1]}".encode()[:_LINE_BYTES])

    @staticmethod
    def line_in_page(page: bytes) -> str:
        """Return `train.py:17`, where the rank of a page that was read from its file is; "" if that is not known."""
        return _text(page, _LINE_AT, _LINE_BYTES) if len(page) == _SIZE else ""

    @staticmethod
    def finished_in_page(page: bytes, group: str) -> int:
        """Return the number of the last wait of a group that a rank has left; 0 if it is not known, or this is not a page."""
        if len(page) != _SIZE:
            return 0
        code, at = _slot_of(group)
        found, number = divmod(_counter.unpack_from(page, at)[0], 1 << 32)
        return number if found == code else 0

    def waiting_in(self) -> str:
        """Return what the rank waits for other ranks in, or ""."""
        return _text(self._page, _WAITING_AT, _WAITING_BYTES)

    def _write(self, at: int, text: bytes) -> None:
        self._page[at + 2 : at + 2 + len(text)] = text
        _length.pack_into(self._page, at, len(text))


@lru_cache(maxsize=256)
def _slot_of(group: str) -> tuple[int, int]:
    """Return the checksum of a group, and where the number of its last wait is."""
    code = zlib.crc32(group.encode())
    return code, _FINISHED_AT + 8 * (code % _FINISHED_SLOTS)


def _check(page: bytes) -> None:
    if len(page) != _SIZE:
        raise ValueError("not a page")


def _text(page: Any, at: int, most: int) -> str:
    length = min(_length.unpack_from(page, at)[0], most)
    return bytes(page[at + 2 : at + 2 + length]).decode("utf-8", "replace")


def _map(file: int) -> Any:
    """Return the page as a buffer. `mmap.mmap` would keep a file descriptor open, which the script could notice."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    address = function(None, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return (ctypes.c_char * _SIZE).from_address(address)
