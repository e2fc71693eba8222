"""The init process of a local run: starts the zygote, adopts every process that loses its parent, and ends all of them.

`python init.py NODES CODES COMMAND…` runs COMMAND. NODES and CODES are descriptors of pipes: process ids of nodes are read from
one, and `(process id, exit code)` is written to the other when a node has ended. Process id 0 stands for a COMMAND that could not
be executed, with the error's number instead of an exit code.

SIGTERM ends all descendants. A process cannot stop being one, even with another session, environment or parent. Init
exits when there are none left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from pathlib import Path

NODE, CODE = struct.Struct("i"), struct.Struct("ii")
LABEL = "COMPOSESIM_NODE"
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.01  # for killed processes to disappear


class _Descendants:
    def __init__(self, nodes: int, codes: int) -> None:
        self._nodes, self._codes, self._known = nodes, codes, set[int]()
        for pipe in (nodes, codes):
            os.set_blocking(pipe, False)  # whoever ends the run may wait for us instead of reading
            os.set_inheritable(pipe, False)  # else nodes could write exit codes

    def reap(self) -> bool:
        """Reap the children that have ended, and report those that are nodes. Return whether there are descendants left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            with contextlib.suppress(BlockingIOError):  # composesim names a node before the zygote, its parent, exits
                self._known |= {each for (each,) in NODE.iter_unpack(os.read(self._nodes, 1 << 16))}
            if pid in self._known:
                self._known.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                self.report(pid, code if code >= 0 else 128 - code)

    def report(self, pid: int, code: int) -> None:
        """Write an exit code for composesim, if it still runs."""
        with contextlib.suppress(OSError):
            os.write(self._codes, CODE.pack(pid, code))

    def end(self) -> None:
        """
        Stop all descendants until there is no new one, and kill them; repeat until there are none.

        Killing alone would make room for what others fork meanwhile. Those that may not be signaled, such as a `sudo`, are left.
        """
        while self.reap():
            stopped: dict[int, str] = {}
            self._stop_children()
            while self._stop_tree(stopped):
                self._stop_children()
            if stopped and not any([_signal(pid, start, signal.SIGKILL) for pid, start in stopped.items()]):
                return
            signal.sigtimedwait({signal.SIGCHLD}, _PAUSE_S)

    def _stop_children(self) -> None:
        """Stop our children until there is no new one. In a chain of processes that fork and exit, each becomes our child."""
        path, before, children = Path(f"/proc/self/task/{os.getpid()}/children"), "", " "
        while children != before and self.reap():
            before, children = children, path.read_text() if path.exists() else before
            for pid in children.split():
                with contextlib.suppress(OSError):  # no other process reaps them, so the id is not reused
                    os.kill(int(pid), signal.SIGSTOP)

    def _stop_tree(self, stopped: dict[int, str]) -> bool:
        """Stop the descendants that are not in `stopped`: process id -> start time. Return whether there were any."""
        ours, found = {os.getpid()}, False
        for pid in sorted(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()):
            state, parent, start = _stat(pid)
            if parent in ours and state not in "ZX":
                ours.add(pid)
                if stopped.get(pid) != start:
                    stopped[pid], found = start, True
                    _signal(pid, start, signal.SIGSTOP)
        return found


def _signal(pid: int, start: str, number: signal.Signals) -> bool:
    """Signal the process of this id and start time; return whether that is permitted."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if _stat(pid)[2] == start:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    finally:
        os.close(handle)
    return True


def _stat(pid: int) -> tuple[str, int, str]:
    """Return the state, parent and start time of a process; state X if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return "X", -1, ""
    return fields[0], int(fields[1]), fields[19]


def _start(argv: list[str]) -> int:
    """Execute a command in a new process; return an error's number if that is impossible, else 0."""
    started, starting = os.pipe()
    if os.fork() == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        del os.environ[LABEL]
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(starting, bytes([error.errno or 1]))
        os._exit(127)
    os.close(starting)
    with os.fdopen(started, "rb") as result:
        return int.from_bytes(result.read(1))


def main() -> None:
    """Start the command, and reap descendants until there are none, or SIGTERM arrives."""
    nodes, codes = map(int, sys.argv[1:3])
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    descendants = _Descendants(nodes, codes)
    if error := _start(sys.argv[3:]):
        descendants.report(0, error)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # composesim reads the zygote's answers to the end
    while descendants.reap():
        if signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) == signal.SIGTERM:
            descendants.end()
            break


if __name__ == "__main__":
    main()
