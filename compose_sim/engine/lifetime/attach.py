"""Connect the user's terminal to the debugger of a rank, through a socket in the run's folder."""

from __future__ import annotations

import os
import re
import secrets
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from compose_sim.core.events.events import printable
from compose_sim.core.faults.kind import AgentCommand
from compose_sim.core.state.fold import fold
from compose_sim.core.state.state import initial_state, speaks_for_another
from compose_sim.core.verdict.hang import Breakpoint, breakpoint_after
from compose_sim.engine.loopback import is_own_peer
from compose_sim.engine.run_folder.control_requests import AgentCommands
from compose_sim.engine.run_folder.event_tail import EventTail, poll_interval
from compose_sim.engine.run_folder.folder import RunFolder, try_read_plan
from compose_sim.engine.run_folder.node_files import folder_of
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import EngineError

_CHUNK = 65536
_SOCKET = re.compile(r"[\w.-]{1,255}")


class BreakpointWatch:
    """Follows one rank from breakpoint to breakpoint."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        plan = try_read_plan(str(folder))
        self._events = EventTail(folder, plan, logs=False)
        self._state = initial_state(plan) if plan else None
        self.stop: Breakpoint | None = None
        self.last: Breakpoint | None = None  # the one that the rank was at last, also after it has exited
        self.stop_on = ""  # the node whose agent is to stop the rank where it is, once the rank has started
        self._is_running = False
        self._request = ""
        self._refusal = ""

    def update(self) -> Breakpoint | None:
        """Return the breakpoint that the rank is at now."""
        while events := self._events.poll():
            for event in events:
                if self._state:
                    self._state = fold(self._state, event)
                    if speaks_for_another(self._state, event):
                        continue
                if event.rank == self._rank and event.kind in ("rank-started", "rank-exited"):
                    self._is_running = event.kind == "rank-started"
                if event.kind == "command" and event.data.get("id") == self._request:
                    self._refusal = str(event.data.get("why") or "")
                self.stop = breakpoint_after(self.stop, event, rank=self._rank)
                self.last = self.stop or self.last
        return self.stop

    def connect(self, over: threading.Event) -> socket.socket | None:
        """
        Wait until the rank stops at a breakpoint, and connect to the debugger; return None if the run ends first.

        Raises EngineError if the rank cannot be stopped where it is.
        """
        while True:
            started = time.monotonic()
            is_over = over.is_set()
            stop = self.update()
            if self.stop_on and self._is_running and not self._request:
                self._request = f"debug-{secrets.token_hex(4)}"
                values = {"rank": self._rank, "action": "debug"}
                command = AgentCommand(node=self.stop_on, name="rank_fault", values=values)
                AgentCommands(RunFolder(self._folder)).write(command, self._request)
            if self._refusal:
                raise EngineError(self._refusal, hint="composesim attach without --now waits for breakpoint()")
            connection = _connect(self._folder, stop) if stop and stop.phase == "waiting" else None
            if connection or is_over:
                return connection
            over.wait(poll_interval(started))


def start_adapter(connection: socket.socket) -> str:
    """Have the rank start its debug adapter on this connection; return why it cannot, or ""."""
    connection.sendall(b"dap\n")
    answer = b""
    while not answer.endswith(b"\n"):
        data = connection.recv(1)  # what follows belongs to the editor
        if not data:
            return "the rank has ended"
        answer += data
    return answer.decode("utf-8", "replace").strip()


def relay_editor(connection: socket.socket, listener: socket.socket) -> None:
    """
    Wait for an editor to connect to `listener`, and relay between both until one of them closes.

    All users of this machine can connect, and an editor runs code in the rank: connections of others are closed.
    """
    unsent, editor = b"", None
    while editor is None:
        ready, _, _ = select.select([listener, connection], [], [])
        if listener in ready:
            editor, _ = listener.accept()
            if not is_own_peer(editor):
                editor.close()
                editor = None
        elif data := _receive(connection):  # the adapter speaks first
            unsent += data
        else:  # the rank has ended
            return
    with editor:
        editor.sendall(unsent)
        others = {editor: connection, connection: editor}
        while True:
            for each in select.select(list(others), [], [])[0]:
                data = _receive(each)
                if not data:
                    return
                others[each].sendall(data)


def relay_typed(connection: socket.socket, write: Callable[[str], None], read_line: Callable[[str], str]) -> None:
    """Relay between a person, whose lines `read_line` edits after a prompt, and a debugger until it closes the connection."""
    output = b""
    while received := _receive(connection):
        output += received
        if select.select([connection], [], [], 0)[0]:
            continue
        text, newline, prompt = output.decode("utf-8", "replace").rpartition("\n")
        write(text + newline)
        output = b""
        if prompt:  # a prompt is a line without a newline
            try:
                connection.sendall(read_line(printable(prompt)).encode() + b"\n")
            except EOFError:
                connection.shutdown(socket.SHUT_WR)
            except OSError:  # the rank has ended meanwhile
                return


def relay(connection: socket.socket, source: int, write: Callable[[str], None], watch: BreakpointWatch) -> None:
    """
    Relay text between a file descriptor and a debugger, until the debugger closes the connection.

    A line is sent only when the debugger prompts for one, so that piped input can serve several breakpoints. At the end of
    input (Ctrl-D, or the end of a pipe), the debugger gets an end of file and lets the rank continue.
    """
    sources: list[socket.socket | int] = [connection, source]
    unsent, at_prompt, closed = b"", False, False
    while True:
        started = time.monotonic()
        ready, _, _ = select.select(sources, [], [], None if source in sources else poll_interval(started))
        if connection in ready:
            output = _receive(connection)
            if not output:
                return
            write(output.decode("utf-8", "replace"))
            at_prompt = not output.endswith(b"\n")  # a prompt is a line without a newline
        if source in ready:
            typed = os.read(source, _CHUNK)
            unsent += typed
            if not typed:
                sources.remove(source)
        if at_prompt and unsent:
            line, newline, unsent = unsent.partition(b"\n")
            connection.sendall(line + newline)
            at_prompt = False
        elif at_prompt and source not in sources and not closed:
            connection.shutdown(socket.SHUT_WR)
            closed = True
        if source not in sources and not unsent and not ready:
            stop = watch.update()
            # The rank has exited, or has continued and will not stop at a breakpoint for us again.
            if stop is None or (stop.phase == "released" and (closed or os.isatty(source))):
                return


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_CHUNK)
    except ConnectionResetError:  # the rank was killed
        return b""


def _connect(folder: Path, stop: Breakpoint) -> socket.socket | None:
    """Connect to the socket of a rank, however long its path is; return None if nothing listens on it yet."""
    connection, files = socket.socket(socket.AF_UNIX), SafeFolder(folder)
    try:
        with files.opened(f"{folder_of(files, stop.node)}debug") as descriptor:
            if not _SOCKET.fullmatch(stop.socket):  # a script may have written the name
                raise FileNotFoundError(stop.socket)
            file = os.open(stop.socket, os.O_PATH | os.O_NOFOLLOW, dir_fd=descriptor)
            try:
                if not stat.S_ISSOCK(os.fstat(file).st_mode):
                    raise FileNotFoundError(stop.socket)
                connection.connect(f"/proc/self/fd/{file}")
            finally:
                os.close(file)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection
