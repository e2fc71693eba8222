"""Report the ranks that another launcher starts with `subprocess.Popen`.

A launcher notices the end of its ranks once a second, or when all ranks of the node have ended. The agent must know at
once, and for each rank.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from ..shared import starter_protocol


class RankWatcher:
    """
    Watches the processes that this process starts with `local_rank_variable` in their environment, as the ranks of a node.

    Each rank gets its `variables` in addition to the launcher's, except those in `remove`.
    """

    def __init__(
        self,
        link: socket.socket,
        *,
        local_rank_variable: str,
        remove: Collection[str] = (),
        when_all_started: Callable[[], None] = lambda: None,
    ) -> None:
        """Report to the agent over `link`."""
        self.link, self.local_rank_variable, self.remove = link, local_rank_variable, remove
        self.variables: list[dict[str, str]] = []
        self._outputs: list[int] = []
        self._started: set[int] = set()
        self._when_all_started = when_all_started

    def install(self) -> None:
        """Replace `subprocess.Popen`; must be called before the launcher's modules are imported."""
        _RankPopen.watcher = self
        subprocess.Popen = _RankPopen  # type: ignore[assignment,misc]

    def receive(self) -> list[dict[str, str]]:
        """Wait until the agent starts a round, and return the ranks' variables; nothing if the agent disconnects."""
        ranks: list[dict[str, str]] = []
        more = True
        while more:
            received = starter_protocol.receive(self.link)
            if received is None:
                return []
            packet, descriptors = received
            ranks += starter_protocol.ranks_of(packet)
            self._outputs += descriptors
            more = packet["more"]
        return ranks

    def prepare(self, local_rank: int, env: Mapping[str, str], options: dict[str, Any]) -> dict[str, str]:
        """Set the rank's output in the options of `Popen`, and return the rank's environment."""
        options.update(stdin=subprocess.DEVNULL, stdout=self._outputs[local_rank], stderr=subprocess.STDOUT)
        if options.get("preexec_fn") is os.setsid:  # equivalent, and safe in a process with threads
            options.update(preexec_fn=None, start_new_session=True)
        return {**{name: value for name, value in env.items() if name not in self.remove}, **self.variables[local_rank]}

    def started(self, local_rank: int, pid: int) -> None:
        """Report that a rank has started."""
        os.close(self._outputs[local_rank])
        starter_protocol.send(self.link, {"started": local_rank, "pid": pid})
        self._started.add(local_rank)
        if len(self._started) == len(self.variables):
            self._when_all_started()

    def ended(self, local_rank: int, status: int) -> None:
        """Report how a rank has ended."""
        with contextlib.suppress(ConnectionError):  # the agent has disconnected
            starter_protocol.send(self.link, {"ended": local_rank, "status": status})


class _RankPopen(subprocess.Popen):  # type: ignore[type-arg]
    watcher: ClassVar[RankWatcher]

    def __init__(self, args: Any, *, env: Mapping[str, str] | None = None, **options: Any) -> None:
        self._local_rank = int((env or {}).get(self.watcher.local_rank_variable, -1))
        self._code: int | None = None
        self._reported = threading.Lock()
        if env is not None and self._local_rank >= 0:
            env = self.watcher.prepare(self._local_rank, env, options)
        super().__init__(args, env=env, **options)
        if self._local_rank >= 0:
            self.watcher.started(self._local_rank, self.pid)
            threading.Thread(target=self._report_when_it_ends, daemon=True).start()

    @property
    def returncode(self) -> int | None:
        return self._code

    @returncode.setter
    def returncode(self, code: int | None) -> None:
        self._code = code
        if code is not None:
            self._report_end(code)

    def _report_when_it_ends(self) -> None:
        # If the launcher polls sooner, `returncode` reports the end.
        with contextlib.suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            if found is not None:
                self._report_end(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def _report_end(self, status: int) -> None:
        if self._local_rank >= 0 and self._reported.acquire(blocking=False):  # once, whoever notices first
            self.watcher.ended(self._local_rank, status)
