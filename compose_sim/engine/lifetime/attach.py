"""How does a person reach the debugger of a rank? Through its socket in the run's folder, text both ways."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from compose_sim.core.verdict.breakpoints import Stop, stop_after
from compose_sim.engine.run_folder.event_tail import Follower, pause_after

_CHUNK = 65536


class Watch:
    """Follows where one rank stands."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._follower = Follower(folder, logs=False)
        self.stop: Stop | None = None

    def look(self) -> Stop | None:
        """Where the rank stands now."""
        while events := self._follower.poll():
            for event in events:
                self.stop = stop_after(self.stop, event, rank=self._rank)
        return self.stop

    def connect(self, over: threading.Event) -> socket.socket | None:
        """A connection to the rank's debugger once it waits at one; None when the run is over before."""
        while True:
            looked = time.monotonic()
            is_over = over.is_set()
            stop = self.look()
            link = _connect(self._folder / "debug", stop.socket) if stop and stop.phase == "waiting" else None
            if link or is_over:
                return link
            over.wait(pause_after(looked))


def relay(link: socket.socket, source: int, write: Callable[[str], None], watch: Watch) -> None:
    """
    Carry text between a file descriptor and a debugger, until the debugger closes.

    A line is sent when the debugger asks for one, so that what comes from a pipe lasts for several breakpoints. Where the
    source has ended (Ctrl-D, or the end of a pipe), the debugger is told, and lets the rank run on.
    """
    sources: list[socket.socket | int] = [link, source]
    unsent, asked, told = b"", False, False
    while True:
        looked = time.monotonic()
        ready, _, _ = select.select(sources, [], [], None if source in sources else pause_after(looked))
        if link in ready:
            output = _receive(link)
            if not output:
                return
            write(output.decode("utf-8", "replace"))
            asked = not output.endswith(b"\n")  # a prompt is a line without its end
        if source in ready:
            typed = os.read(source, _CHUNK)
            unsent += typed
            if not typed:
                sources.remove(source)
        if asked and unsent:
            line, newline, unsent = unsent.partition(b"\n")
            link.sendall(line + newline)
            asked = False
        elif asked and source not in sources and not told:
            link.shutdown(socket.SHUT_WR)
            told = True
        if source not in sources and not unsent and not ready and _runs_on(watch.look(), told or os.isatty(source)):
            return


def _runs_on(stop: Stop | None, leaving: bool) -> bool:
    """Whether the rank needs us no more: its process has ended, or it has been let go and nobody will stop it for us."""
    return stop is None or (leaving and stop.phase == "released")


def _receive(link: socket.socket) -> bytes:
    try:
        return link.recv(_CHUNK)
    except ConnectionResetError:  # the rank was killed
        return b""


def _connect(folder: Path, name: str) -> socket.socket | None:
    """A connection to a socket, however long its path is; None while nobody listens there (yet)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(f"/proc/self/fd/{descriptor}/{name}")
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        return None
    finally:
        os.close(descriptor)
    return link
