"""How can an agent see that a rank moves, when the rank itself cannot say so any more? By counters in a page of memory they share.

A rank that sleeps in C with the interpreter locked, or was stopped, can run no code of ours. It needs none: it wrote before it
entered what it cannot leave, and a page of a mapped file outlives it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
from pathlib import Path
from typing import Any

STACKS_SIGNAL = signal.SIGRTMAX - 3  # makes a rank write its stacks; rank/stack_signal.py handles it
_COUNTERS = ("steps", "collectives", "batches")
_OF_STACKS = ("main_thread", "helper", "descriptor", "awake")  # rank/stack_signal.py says what they are
_OF_LIBRARIES = ("talks",)  # 1: a thread of a library exchanges messages without end, also while nothing goes on
_SIZE = 4096
_WAITING_AT = 64
_WAITING_BYTES = 1024
_STACKS_AT = 2048
_OFFSETS = {
    **{name: 8 * (1 + index) for index, name in enumerate(_COUNTERS)},
    **{name: _STACKS_AT + 8 * index for index, name in enumerate(_OF_STACKS + _OF_LIBRARIES)},
}
_counter = struct.Struct("=Q")
_length = struct.Struct("=H")


class ProgressPage:
    """The page of one rank in one round; written by the rank, read by its agent."""

    def __init__(self, folder: Path, node: str, rank: int, generation: int) -> None:
        """Map the page. Where that is not possible, the rank's progress is simply not seen."""
        self.path = folder / "observations" / f"{node}.{rank}.{generation}.progress"
        self._page: Any = bytearray(_SIZE)
        try:
            self.path.parent.mkdir(exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(file, _SIZE)
                self._page = _map(file)
            finally:
                os.close(file)
        except OSError:
            pass

    @property
    def stacks_path(self) -> Path:
        """The file that the rank writes its stacks to."""
        return self.path.with_suffix(".stacks")

    def advance(self, name: str) -> None:
        """One more of `steps`, `collectives` or `batches`."""
        self.set(name, self.get(name) + 1)

    def set(self, name: str, value: int) -> None:
        """Write one number down for the agent."""
        _counter.pack_into(self._page, _OFFSETS[name], value)

    def get(self, name: str) -> int:
        """The number of this name; 0 where it was never written."""
        value: int = _counter.unpack_from(self._page, _OFFSETS[name])[0]
        return value

    def counters(self) -> dict[str, int]:
        """How often each has advanced."""
        return {name: self.get(name) for name in _COUNTERS}

    def wait_in(self, what: str) -> None:
        """From now on the rank waits for others in this, such as `all_reduce #12 (train.py, line 40)`; nothing: no more."""
        text = what.encode()[:_WAITING_BYTES]
        _length.pack_into(self._page, _WAITING_AT, 0)  # never a length that belongs to another text
        self._page[_WAITING_AT + 2 : _WAITING_AT + 2 + len(text)] = text
        _length.pack_into(self._page, _WAITING_AT, len(text))

    def waiting_in(self) -> str:
        """What the rank waits for others in, or nothing."""
        length = _length.unpack_from(self._page, _WAITING_AT)[0]
        return bytes(self._page[_WAITING_AT + 2 : _WAITING_AT + 2 + length]).decode("utf-8", "replace")


def _map(file: int) -> Any:
    """The page as a buffer. Not by `mmap.mmap`, which would hold a descriptor that the script's own files should have."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    address = function(None, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return (ctypes.c_char * _SIZE).from_address(address)
