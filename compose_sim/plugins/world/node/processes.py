"""Fork a process for each rank, with limits, and run the beginning of a script once for all ranks."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import Any, Callable

from ....node.planning.fake_run import resident_bytes
from ....node.shared import process

_LOOK_MS = 100
_PROCESSES = 2  # at a time: more of them would need more memory
_OF_RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK")


class Limit(Exception):
    """A rank took too long, or too much memory."""


def set_environment(rank: int, *, world: int, per_node: int) -> None:
    """Set the variables with which a launcher starts this rank."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank % per_node),
        LOCAL_WORLD_SIZE=str(per_node),
        GROUP_RANK=str(rank // per_node),
        NODE_RANK=str(rank // per_node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
        ACCELERATE_USE_CPU="true",  # without a GPU, Accelerate makes no process group otherwise
    )


def await_process(child: int, deadline: float, most_bytes: int) -> int:
    """Return the exit status of a child; end it and raise Limit if it takes too long or too much memory."""
    handle = os.pidfd_open(child)
    try:
        watch = select.poll()
        watch.register(handle, select.POLLIN)
        while not watch.poll(_LOOK_MS):
            late, used = time.monotonic() > deadline, resident_bytes(child)
            if late or used > most_bytes:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise Limit("it did not end in time" if late else f"it took more than {most_bytes >> 20} MiB of memory")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(handle)


class Branches:
    """Lets a script begin in one process, and forks a process for each of these ranks when it first asks which rank it is."""

    def __init__(self, ranks: Sequence[int], world: int, per_node: int, deadline: float, most_bytes: int) -> None:
        self._ranks, self._world, self._per_node = ranks, world, per_node
        self._deadline, self._most_bytes = deadline, most_bytes
        self._is_rank = False
        self.rank = -1

    def watch_environment(self) -> None:
        """Branch when the script, or torch for it, reads the variables of a rank."""
        environment: Any = type(os.environ)
        read = environment.__getitem__

        def read_as_rank(variables: Any, name: Any) -> Any:
            if name in _OF_RANKS:
                self.branch()
            return read(variables, name)

        environment.__getitem__ = read_as_rank

    def branch(self) -> None:
        """Return once in a process per rank; the process that called ends when the ranks have ended, or the time is over."""
        if self._is_rank:
            return
        self._is_rank = True  # reading a variable must not branch again
        parent, status = os.getpid(), 0
        with contextlib.suppress(Limit):
            for begin in range(0, len(self._ranks), _PROCESSES):
                children = []
                for rank in self._ranks[begin : begin + _PROCESSES]:
                    child = os.fork()
                    if not child:
                        process.die_with(parent)
                        self.rank = rank
                        _print_nothing()
                        set_environment(rank, world=self._world, per_node=self._per_node)
                        return
                    children.append(child)
                for child in children:
                    status = status or await_process(child, self._deadline, self._most_bytes)
                if status:
                    break
        os._exit(0)


def _print_nothing() -> None:
    """Drop what a thousand ranks print; those that run up to their second step have printed it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)


def fork(run: Callable[[], Any]) -> int:
    """Return the id of a new process that runs `run` and ends."""
    child = os.fork()
    if child:
        return child
    try:
        process.die_with(os.getppid())
        run()
    finally:
        os._exit(70)
