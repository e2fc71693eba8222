"""Copy the output of ranks into one log file per rank, and line by line to the node's output.

Beside each log, a file of STAMPs tells when its parts were printed. A progress bar writes a line again and again. Of its states,
the last one is copied, and before that one now and then.
"""

from __future__ import annotations

import os
import re
import selectors
import struct
import sys
import time
from pathlib import Path

from .event_log import RunClock, clock_of
from .regular_files import open_to_append, read_regular

STAMP = struct.Struct("<qd")  # an offset in a log, and when the output from there on was read, in Unix seconds

_READ_BYTES = 1 << 16
# If the node's output is read more slowly than ranks print, ranks block, as they would without composesim
_MAX_PENDING = 1 << 20
_LONGEST_LINE = 1 << 20
_BETWEEN_STATES_S = 1.0, 30.0  # of a progress bar: at first, and at most; it doubles
_BETWEEN_STAMPS_S = 0.02
_UP_AGAIN = b"\x1b[A\n"  # a bar below another one: up, and down again
# Of the last words of a rank
_WORDS_BYTES = 256 << 10  # an assertion of a kernel is printed once per thread
_MAX_WORDS = 8
_LONGEST_WORDS = 400
# Lines that say why a rank was ended from below Python: by a kernel, by C++ or by the C library
_TELLING = re.compile(
    r"Assertion `|terminate called |what\(\): |CUDA error: |NCCL WARN |No space left on device|out of shared memory"
    r"|double free|corrupted size|malloc\(\): |free\(\): |Fatal Python error: "
)
_NUMBERS = re.compile(r"\d+")
_WRITE_BYTES = 4096  # a pipe that is ready accepts this many bytes (PIPE_BUF) without blocking


class RankOutput:
    """The pipe and log file of one rank."""

    def __init__(self, log: Path, echo: Echo, clock: RunClock) -> None:
        """Append to `log`, with the times of `clock`, and copy to `echo`."""
        self._pipe, self.write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        self._log = _LogFile(log, clock)
        self._echo = echo
        self._unfinished = b""  # the start of a line; ranks' lines are never mixed on the node's output
        self._bars = ProgressBars()
        self.ended = False

    def fileno(self) -> int:
        return self._pipe

    def read(self) -> bool:
        """Copy what one read returns; return False if there is nothing to read for now, or for good (`ended`)."""
        try:
            data = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        self.ended = not data
        self._copy(self._bars.take(data, time.monotonic()) if data else self._bars.finish())
        return bool(data)

    def _copy(self, data: bytes) -> None:
        self._log.write(data)
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            self._echo.add(self._unfinished + lines + newline)
            self._unfinished = rest
        else:
            self._unfinished += rest
        if len(self._unfinished) > _LONGEST_LINE or (self.ended and self._unfinished):
            self._echo.add(self._unfinished + b"\n")
            self._unfinished = b""

    def drain(self) -> None:
        """
        Copy everything that is in the pipe. After the rank has ended, that is all it wrote, even if a child holds the pipe
        open.
        """
        while not self.ended and self.read():
            pass

    def close(self) -> None:
        self.drain()
        self._copy(self._bars.finish())
        if self._unfinished:
            self._echo.add(self._unfinished + b"\n")
        os.close(self._pipe)
        self._log.close()


class ProgressBars:
    """The output of one rank without the states of a line that carriage returns overwrite."""

    def __init__(self) -> None:
        self._held: bytes | None = None  # the last state of a line that is a progress bar
        self._has_begun = False  # a part of the line has been copied
        self._was_shown = False  # the state before `_held` has been copied as a line
        self._pause, self._next_at = _BETWEEN_STATES_S[0], 0.0

    def take(self, data: bytes, now: float) -> bytes:
        """Return what to copy of further output: all of it, but for progress bars. `now` is in monotonic seconds."""
        if self._held is None and b"\r" not in data:
            self._has_begun = not data.endswith(b"\n")
            return data
        *lines, rest = ((self._held or b"") + data).replace(_UP_AGAIN, b"\r").split(b"\n")
        copied = b"".join(self._line(line) + b"\n" for line in lines if line or not self._was_shown)
        if lines:
            self._pause, self._next_at, self._was_shown = _BETWEEN_STATES_S[0], 0.0, False
        is_bar = b"\r" in rest or (self._held is not None and not lines)
        state = _last_state(rest)
        if not is_bar or len(state) > _LONGEST_LINE:
            self._held, self._has_begun = None, bool(rest)
            return copied + state
        self._held = state
        return copied + self._due(now)

    def finish(self) -> bytes:
        """Return the last state of a line that never ended."""
        copied = self._line(self._held.rstrip(b"\r")) if self._held else b""
        self._held = None
        return copied

    def _line(self, line: bytes) -> bytes:
        """Return the last state of a line; what has been copied of the line before stays, as if it was overwritten too."""
        is_bar, begun = self._held is not None or b"\r" in line.rstrip(b"\r"), self._has_begun
        self._has_begun = False
        return (b"\r" if begun and is_bar else b"") + _last_state(line)

    def _due(self, now: float) -> bytes:
        """Return the present state as a line, if that has not been done for some time; each time is twice as long."""
        self._next_at = self._next_at or now + self._pause
        state = (self._held or b"").rstrip(b"\r")
        if now < self._next_at or not state.strip():
            return b""
        self._pause = min(2 * self._pause, _BETWEEN_STATES_S[1])
        self._next_at, self._held, self._was_shown = now + self._pause, b"", True
        return self._line(state) + b"\n"


def _last_state(line: bytes) -> bytes:
    """Return what the last carriage return left of a line; one at its end, as in CRLF, overwrites nothing."""
    text = line.rstrip(b"\r")
    return text.rpartition(b"\r")[2] + line[len(text) :]


class _LogFile:
    """A log file with its stamps, written as long as there is space: a full disk must not end a training run."""

    def __init__(self, path: Path, clock: RunClock) -> None:
        self._path, self._clock = path, clock
        self._stamped, self._size = float("-inf"), 0
        self._descriptors: list[int] = []  # of the stamps and of the log
        try:
            for each in (path.with_suffix(".times"), path):
                self._descriptors.append(open_to_append(each))
            self._size = os.fstat(self._descriptors[1]).st_size
        except OSError as error:
            self._stop_logging(error)

    def write(self, data: bytes) -> None:
        if not (self._descriptors and data):
            return
        stamps, log = self._descriptors
        now = self._clock.now()
        try:
            if now - self._stamped >= _BETWEEN_STAMPS_S:  # before the output: whoever reads that then knows its time
                self._stamped = now
                _write_all(stamps, STAMP.pack(self._size, now))
            _write_all(log, data)
            self._size += len(data)
        except OSError as error:
            self._stop_logging(error)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _stop_logging(self, error: OSError) -> None:
        self.close()
        text = f"composesim: cannot append to {self._path} ({error.strerror}): later output is not logged"
        print(text, file=sys.stderr)


class Echo:
    """The node's output, with whole lines of its ranks, written without ever blocking the agent."""

    def __init__(self, descriptor: int, selector: selectors.BaseSelector, *, wanted: bool) -> None:
        """Write to `descriptor`, or nowhere if the output is not `wanted`."""
        self._descriptor, self._selector, self._wanted = descriptor, selector, wanted
        self._pending = bytearray()
        self._watched = False

    @property
    def full(self) -> bool:
        return len(self._pending) > _MAX_PENDING

    def add(self, lines: bytes) -> None:
        if self._wanted:
            self._pending += lines
            self._watch()

    def write(self) -> None:
        """Write some of the pending output; the descriptor must be ready."""
        try:
            written = os.write(self._descriptor, self._pending[:_WRITE_BYTES])
        except BlockingIOError:
            return
        except OSError:  # our output is no longer read, but the log files remain
            self._wanted, written = False, len(self._pending)
        del self._pending[:written]
        self._watch()

    def flush(self, seconds: float) -> None:
        """Write all pending output, unless the descriptor is not ready for this long."""
        with selectors.DefaultSelector() as selector:
            if self._watched:
                selector.register(self._descriptor, selectors.EVENT_WRITE)
            while self._watched and selector.select(seconds):
                self.write()

    def _watch(self) -> None:
        if bool(self._pending) == self._watched:
            return
        if self._watched:
            self._selector.unregister(self._descriptor)
            self._watched = False
            return
        try:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self.write)
            self._watched = True
        except PermissionError:  # a plain file cannot be polled, and never blocks
            pending, self._pending = bytes(self._pending), bytearray()
            _write_all(self._descriptor, pending)


class RankLogs:
    """The logs of all ranks of a node."""

    def __init__(self, folder: Path, node: str, selector: selectors.BaseSelector, *, echo: bool) -> None:
        """Write files `<node>.<rank>.log` in `folder`."""
        self._folder, self._node, self._selector = folder, node, selector
        self._echo = Echo(1, selector, wanted=echo)
        self._outputs: dict[int, RankOutput] = {}
        self._began: dict[int, int] = {}  # where the present round begins in each log
        self._reading = True

    def open(self, rank: int) -> int:
        """Start to copy a rank's output, and return the descriptor to write it to, which the caller must close."""
        self._began[rank] = self.logged(rank)
        output = RankOutput(self._log(rank), self._echo, clock_of(self._folder.parent))
        self._outputs[rank] = output
        self._watch(rank)
        return output.write_end

    def logged(self, rank: int) -> int:
        """Return how many bytes the rank's log has from earlier rounds."""
        try:
            return self._log(rank).stat().st_size
        except OSError:
            return 0

    def last_words(self, rank: int) -> list[str]:
        """Return the telling lines at the end of what the rank has written in this round; none if the log cannot be read."""
        offset = max(self._began.get(rank, 0), self.logged(rank) - _WORDS_BYTES)
        try:
            return last_words(read_regular(self._log(rank), _WORDS_BYTES, offset=offset))
        except OSError:
            return []

    def drain(self, rank: int) -> None:
        """Copy all remaining output of a rank that has ended."""
        if rank in self._outputs:
            self._outputs[rank].drain()
            self._forget_if_ended(rank)

    def hold(self) -> None:
        """Stop reading while too much output is pending, and resume later."""
        if self._reading == self._echo.full:
            self._reading = not self._echo.full
            for rank, output in self._outputs.items():
                if self._reading:
                    self._watch(rank)
                else:
                    self._selector.unregister(output)

    def close_round(self) -> None:
        """Close the pipes of all ranks, which have ended; children may still hold them open."""
        for rank in list(self._outputs):
            self._forget(rank)

    def finish(self, seconds: float) -> None:
        self.close_round()
        self._echo.flush(seconds)

    def _log(self, rank: int) -> Path:
        return self._folder / f"{self._node}.{rank}.log"

    def _watch(self, rank: int) -> None:
        if self._reading:
            self._selector.register(self._outputs[rank], selectors.EVENT_READ, lambda: self._read(rank))

    def _read(self, rank: int) -> None:
        if rank in self._outputs:  # it was drained earlier in this iteration
            self._outputs[rank].read()
            self._forget_if_ended(rank)

    def _forget_if_ended(self, rank: int) -> None:
        if self._outputs[rank].ended:
            self._forget(rank)

    def _forget(self, rank: int) -> None:
        output = self._outputs.pop(rank)
        if self._reading:
            self._selector.unregister(output)
        output.close()


def last_words(output: bytes) -> list[str]:
    """Return the telling lines at the end of the output of a rank, each kind once."""
    found: dict[str, str] = {}
    for line in output.decode(errors="replace").splitlines():
        if _TELLING.search(line[: 4 * _LONGEST_WORDS]):
            found.setdefault(_NUMBERS.sub("", line)[:_LONGEST_WORDS], line.strip()[:_LONGEST_WORDS])
    return list(found.values())[-_MAX_WORDS:]


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
