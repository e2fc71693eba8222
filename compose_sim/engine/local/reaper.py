"""Start the init process of a run (init.py), and keep the exit codes that it reports of nodes."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from compose_sim.engine.local import init
from compose_sim.engine.local.process_labels import INIT

_REPORTS_WITHIN_S = 5.0  # a script of the same user may stop or kill it

Key = tuple[str, str]  # run and node


class Init:
    """An init process."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], errors: IO[str]) -> None:
        """Start the command as its only child, which talks to us on `process.stdin` and `process.stdout`."""
        (nodes, nodes_end), (codes_end, codes) = os.pipe(), os.pipe()
        self._nodes, self._codes = os.fdopen(nodes_end, "wb", buffering=0), os.fdopen(codes_end, "rb", buffering=0)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", init.__file__, str(nodes), str(codes), *command],
            env={**environment, init.LABEL: INIT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for composesim, which stops the nodes in order
            pass_fds=(nodes, codes),
        )
        os.close(nodes)
        os.close(codes)
        self._known: dict[int, int] = {}

    def name_node(self, pid: int) -> None:
        """Have the exit code of this process reported. The zygote, its parent, must be alive."""
        with contextlib.suppress(BrokenPipeError):  # it has been killed
            self._nodes.write(init.NODE.pack(pid))

    def code(self, pid: int, *, within_s: float = _REPORTS_WITHIN_S) -> int | None:
        """Wait for the exit code of a process that has ended; None if init has been killed or does not respond."""
        while pid not in self._known and not self._codes.closed and select.select([self._codes], [], [], within_s)[0]:
            record = self._codes.read(init.CODE.size)
            if not record:
                break
            ended, code = init.CODE.unpack(record)
            self._known[ended] = code
        return self._known.get(pid)

    def close(self) -> None:
        """Wait for the process, all of whose descendants have been ended, and keep the exit codes."""
        self.process.wait()
        self.code(-1)  # to the end
        self._codes.close()
        self._nodes.close()


class ChildProcesses:
    """The nodes that this process has started. Safe to use from several threads."""

    def __init__(self) -> None:
        self._inits: list[tuple[str, Init]] = []
        self._nodes: dict[Key, tuple[int, Init]] = {}
        self._codes: dict[Key, int | None] = {}
        self._lock = threading.Lock()

    def add(self, key: Key, pid: int, init_process: Init) -> None:
        """Register the node's process, whose parent must be alive, and forget the exit code of an earlier one."""
        init_process.name_node(pid)
        with self._lock:
            self._nodes[key] = pid, init_process
            self._codes.pop(key, None)

    def pid(self, key: Key) -> int | None:
        """Return the node's process id; None if another process started it, or if its exit code is known."""
        with self._lock:
            return self._nodes[key][0] if key in self._nodes and key not in self._codes else None

    def exit_code(self, key: Key) -> int | None:
        """Return the exit code of a node that has ended, as a shell would; None if another process started it."""
        with self._lock:
            if key in self._nodes and key not in self._codes:
                pid, init_process = self._nodes[key]
                self._codes[key] = init_process.code(pid)
            return self._codes.get(key)

    def add_init(self, run: str, init_process: Init) -> None:
        """Register an init process of a run."""
        with self._lock:
            self._inits.append((run, init_process))

    def close(self, run: str) -> None:
        """Wait for the init processes of a run, whose nodes have been ended."""
        with self._lock:
            for owner, each in self._inits:
                if owner == run:
                    each.close()
            self._inits = [(owner, each) for owner, each in self._inits if owner != run]
