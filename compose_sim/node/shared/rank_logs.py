"""Copy the output of ranks: unchanged into one log file per rank, and line by line to the node's output."""

from __future__ import annotations

import os
import selectors
import sys
from pathlib import Path

_READ_BYTES = 1 << 16
# If the node's output is read more slowly than ranks print, ranks block, as they would without composesim
_MOST_PENDING = 1 << 20
_LONGEST_LINE = 1 << 20
_WRITE_BYTES = 4096  # a pipe that is ready accepts this many bytes (PIPE_BUF) without blocking


class RankOutput:
    """The pipe and log file of one rank."""

    def __init__(self, log: Path, echo: Echo) -> None:
        """Append to `log`, and copy to `echo`."""
        self._pipe, self.write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        self._log = _LogFile(log)
        self._echo = echo
        self._unfinished = b""  # the start of a line; ranks' lines are never mixed on the node's output
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
        return bool(data)

    def drain(self) -> None:
        """
        Copy everything that is in the pipe. After the rank has ended, that is all it wrote, even if a child holds the pipe
        open.
        """
        while not self.ended and self.read():
            pass

    def close(self) -> None:
        self.drain()
        if self._unfinished:
            self._echo.add(self._unfinished + b"\n")
        os.close(self._pipe)
        self._log.close()


class _LogFile:
    """A log file, written as long as there is space: a full disk must not end a training run."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._stop_logging(error)

    def write(self, data: bytes) -> None:
        if self._descriptor >= 0:
            try:
                _write_all(self._descriptor, data)
            except OSError as error:
                self._stop_logging(error)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _stop_logging(self, error: OSError) -> None:
        self.close()
        self._descriptor = -1
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
        return len(self._pending) > _MOST_PENDING

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
        except OSError:  # nobody reads our output any more, but the log files remain
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
        self._reading = True

    def open(self, rank: int) -> int:
        """Start to copy a rank's output, and return the descriptor to write it to, which the caller must close."""
        output = RankOutput(self._log(rank), self._echo)
        self._outputs[rank] = output
        self._watch(rank)
        return output.write_end

    def logged(self, rank: int) -> int:
        """Return how many bytes the rank's log has from earlier rounds."""
        try:
            return self._log(rank).stat().st_size
        except OSError:
            return 0

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


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
