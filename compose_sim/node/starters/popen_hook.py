"""How does the agent learn of ranks that a framework's own launcher starts? It starts them by `subprocess.Popen`, which is public.

A launcher tells how its ranks ended when all of a node have, or looks once a second; the agent has to know at once, and for each.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..shared import starter_protocol


def watch_ranks(
    link: socket.socket,
    ranks: Sequence[Mapping[str, str]],
    outputs: Sequence[int],
    *,
    known_by: str,
    without: Collection[str] = (),
    when_all_started: Callable[[], None] = lambda: None,
) -> None:
    """
    From now on, ranks that this process starts write to their outputs, and `link` is told how they start and end.

    A rank is what is started with the variable `known_by`, its number on this node; `ranks` are the variables that each is given
    beyond the launcher's own, of which those named in `without` are left out. To be called before the launcher's modules are
    imported; both lists may be filled later.
    """
    started: set[int] = set()

    class RankPopen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, args: Any, *, env: Mapping[str, str] | None = None, **options: Any) -> None:
            self._local_rank = int((env or {}).get(known_by, -1))
            self._code: int | None = None
            self._told = threading.Lock()
            if self._local_rank >= 0:
                output = outputs[self._local_rank]
                options.update(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
                env = {name: value for name, value in (env or {}).items() if name not in without}
                env |= ranks[self._local_rank]
                if options.get("preexec_fn") is os.setsid:  # the same, and safe in a process that has threads
                    options.update(preexec_fn=None, start_new_session=True)
            super().__init__(args, env=env, **options)
            if self._local_rank >= 0:
                os.close(output)
                self._tell_start()

        def _tell_start(self) -> None:
            starter_protocol.send(link, {"started": self._local_rank, "pid": self.pid})
            threading.Thread(target=self._tell_when_it_ends, daemon=True).start()
            started.add(self._local_rank)
            if len(started) == len(ranks):
                when_all_started()

        @property
        def returncode(self) -> int | None:
            return self._code

        @returncode.setter
        def returncode(self, code: int | None) -> None:
            self._code = code
            if code is not None:
                self._tell_end(code)

        def _tell_when_it_ends(self) -> None:
            # Where the launcher itself is quicker to ask, `returncode` tells it.
            with contextlib.suppress(ChildProcessError):
                found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                if found is not None:
                    self._tell_end(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

        def _tell_end(self, code: int) -> None:
            if self._local_rank >= 0 and self._told.acquire(blocking=False):  # once, whoever sees it first
                with contextlib.suppress(ConnectionError):  # the agent needs us no more
                    starter_protocol.send(link, {"ended": self._local_rank, "status": code})

    subprocess.Popen = RankPopen  # type: ignore[assignment,misc]


def receive_ranks(link: socket.socket, ranks: list[dict[str, str]], outputs: list[int]) -> bool:
    """Wait for the agent's word to start ranks, and fill both lists; False where it needs us no more."""
    more = True
    while more:
        received = starter_protocol.receive(link)
        if received is None:
            return False
        packet, descriptors = received
        ranks += starter_protocol.ranks_of(packet)
        outputs += descriptors
        more = packet["more"]
    return True
