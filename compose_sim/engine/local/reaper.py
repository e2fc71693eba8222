"""Adopt the processes of nodes as children, and keep their exit codes."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable

from compose_sim.errors import EngineError

_PR_SET_CHILD_SUBREAPER = 36

Key = tuple[str, str]  # run and node


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose parent exits: nodes, when the zygote leaves."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise EngineError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}", hint="composesim doctor")


class ChildProcesses:
    """The nodes that this process has started. Safe to use from several threads."""

    def __init__(self) -> None:
        self._pids: dict[Key, int] = {}
        self._exit_codes: dict[Key, int] = {}
        self._lock = threading.Lock()

    def add(self, key: Key, pid: int) -> None:
        """Register the node's process, and forget the exit code of an earlier one."""
        with self._lock:
            self._pids[key] = pid
            self._exit_codes.pop(key, None)

    def pid(self, key: Key) -> int | None:
        """Return the node's process id; None if another process started it, or if its exit code is known."""
        with self._lock:
            return None if key in self._exit_codes else self._pids.get(key)

    def exit_code(self, key: Key) -> int | None:
        """Return the exit code as a shell would; None if the node is running, or if another process started it."""
        with self._lock:
            if key not in self._exit_codes and key in self._pids:
                code = _reap(self._pids[key])
                if code is not None:
                    self._exit_codes[key] = code
            return self._exit_codes.get(key)

    def reap_others(self, pids: Iterable[int]) -> None:
        """Reap those of these processes that are not nodes. A node stays until its exit code is requested."""
        with self._lock:
            for pid in set(pids) - set(self._pids.values()):
                _reap(pid)


def _reap(pid: int) -> int | None:
    """Return the exit code of a child; None if it is running, or is not a child of this process."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
