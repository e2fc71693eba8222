"""Which processes have become our children, and with what exit code did each end?"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable

from compose_sim.errors import EngineError

_PR_SET_CHILD_SUBREAPER = 36

Key = tuple[str, str]  # run and node


def adopt_orphans() -> None:
    """Become the parent of what loses its own below us: nodes when the zygote leaves, so that the kernel tells us how they end."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise EngineError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}", hint="composesim doctor")


class Children:
    """The nodes that this process started. Several threads may ask how one ended."""

    def __init__(self) -> None:
        self._pids: dict[Key, int] = {}
        self._exit_codes: dict[Key, int] = {}
        self._lock = threading.Lock()

    def add(self, key: Key, pid: int) -> None:
        """This is the node's process from now on."""
        with self._lock:
            self._pids[key] = pid
            self._exit_codes.pop(key, None)

    def pid(self, key: Key) -> int | None:
        """The node's process; None where somebody else started it, or it has ended and been waited for."""
        with self._lock:
            return None if key in self._exit_codes else self._pids.get(key)

    def exit_code(self, key: Key) -> int | None:
        """As a shell would give it; None while the node runs, or where somebody else started it."""
        with self._lock:
            if key not in self._exit_codes and key in self._pids:
                code = _reap(self._pids[key])
                if code is not None:
                    self._exit_codes[key] = code
            return self._exit_codes.get(key)

    def bury(self, pids: Iterable[int]) -> None:
        """Take leave of orphans that have ended. A node keeps until its exit code is asked for."""
        with self._lock:
            for pid in set(pids) - set(self._pids.values()):
                _reap(pid)


def _reap(pid: int) -> int | None:
    """The exit code of a child that has ended; None where it has not, or is no child of ours."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
