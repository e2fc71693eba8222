"""Debug one rank: `breakpoint()` waits on a socket in the run's folder until `composesim attach` connects to it.

The first line that `attach` sends is `pdb` or `dap`. pdb's input and output are sent as text; `debug_adapter` serves
editors. This module is imported at the first `breakpoint()`.
"""

from __future__ import annotations

import os
import pdb
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from ...shared.event_log import EventLog
from ...shared.frames import is_ours
from . import debug_adapter


class RemotePdb(pdb.Pdb):
    """A pdb that uses the attached terminal. When it disconnects, the script continues."""

    def __init__(self, events: EventLog) -> None:
        """Start without a connection."""
        self._terminal = _SocketFile()
        self._events = events
        super().__init__(stdin=self._terminal, stdout=self._terminal, nosigint=True)  # type: ignore[arg-type]

    def stop_at(self, frame: FrameType) -> None:
        """Wait until a terminal or an editor is attached, then stop at `frame`."""
        if debug_adapter.is_connected():
            debug_adapter.stop_at(frame)
            return
        folder = self._events.folder / "debug"
        name = f"{self._events.node}.{self._events.rank}.{os.getpid()}.sock"
        place = {"file": frame.f_code.co_filename, "line": frame.f_lineno, "socket": name}
        self._events.emit("breakpoint", phase="waiting", **place)
        if not self._terminal.attached:
            where = f"{place['file']}:{place['line']}"
            hint = f"composesim attach --run {self._events.run} --rank {self._events.rank}"
            print(f"composesim: rank {self._events.rank} waits at {where}. To debug it: {hint}", file=sys.stderr)
            self._terminal.wait(str(folder), name)
            if self._terminal.readline() == "dap\n":
                self._events.emit("breakpoint", phase="attached", **place)
                with self._terminal.taken() as link:
                    debug_adapter.serve(link, frame, lambda: self._events.emit("breakpoint", phase="released"))
                return
        self._events.emit("breakpoint", phase="attached", **place)
        self.set_trace(frame)

    def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the stack without the frames of composesim, and without those of `runpy` below the script."""
        stack, current = super().get_stack(f, t)
        kept = [entry for entry in stack if not is_ours(entry[0].f_code.co_filename)]
        while kept and kept[0][0].f_code.co_filename == "<frozen runpy>":
            kept.pop(0)
        if stack[current] not in kept:  # the script has ended, and the user steps on
            return stack, current
        return kept, kept.index(stack[current])

    def do_continue(self, arg: str) -> Any:
        self._terminal.end_line()
        self._events.emit("breakpoint", phase="released")
        return super().do_continue(arg)

    do_c = do_cont = do_continue

    def do_EOF(self, arg: str) -> Any:  # noqa: N802 (pdb's name)
        """The terminal has disconnected: clear all breakpoints, and continue."""
        self.clear_all_breaks()
        return self.do_continue(arg)


class _SocketFile:
    """
    The connection as a file. After it is closed, reads return the end of the file and writes are discarded.

    An unfinished line is sent only when it is flushed: the terminal takes any unfinished line for a prompt.
    """

    encoding, errors = "utf-8", "replace"

    def __init__(self) -> None:
        self._link: socket.socket | None = None
        self._unread, self._unsent = b"", ""

    @property
    def attached(self) -> bool:
        if self._link is None:
            return False
        try:
            return bool(self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def wait(self, folder: str, name: str) -> None:
        """Listen on the socket `name` in `folder` until a terminal connects."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        # A socket's path may have at most 107 bytes; this one is short, however long the folder's path is.
        path = f"/proc/self/fd/{descriptor}/{name}"
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                Path(path).chmod(0o600)  # with any umask; no client can connect before we listen
                listener.listen(1)
                self._link, _ = listener.accept()
                self._unsent = ""
                Path(path).unlink()
        finally:
            os.close(descriptor)

    def taken(self) -> socket.socket:
        """Return the connection, which this file then no longer has."""
        assert self._link is not None
        link, self._link = self._link, None
        return link

    def readline(self) -> str:
        while b"\n" not in self._unread:
            data = self._receive()
            if not data:
                return ""
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace") + "\n"

    def write(self, text: str) -> int:
        lines, newline, self._unsent = (self._unsent + text).rpartition("\n")
        if newline:
            self._send(lines + newline)
        return len(text)

    def end_line(self) -> None:
        """Send the unfinished line as a line, because no prompt follows."""
        if self._unsent:
            self.write("\n")

    def flush(self) -> None:
        """Send the unfinished line."""
        text, self._unsent = self._unsent, ""
        self._send(text)

    def _send(self, text: str) -> None:
        try:
            if self._link is not None:
                self._link.sendall(text.encode(errors="replace"))
        except OSError:
            self._link = None

    def _receive(self) -> bytes:
        try:
            return self._link.recv(65536) if self._link is not None else b""
        except OSError:
            return b""


_prompts: dict[int, RemotePdb] = {}  # by process, because processes that the script forks have their own


def stop_at(frame: FrameType, events: EventLog) -> None:
    """Stop this process at `frame`, as `breakpoint()` does in a terminal."""
    if os.getpid() not in _prompts:
        _prompts[os.getpid()] = RemotePdb(events)
    _prompts[os.getpid()].stop_at(frame)
