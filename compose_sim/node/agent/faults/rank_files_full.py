"""How does a rank come to have no file number left? Its limit of open files is lowered to what it has open now."""

from __future__ import annotations

import resource
import time
from collections.abc import Generator
from pathlib import Path

from . import FailedError, Node, Order

_SECONDS_TO_START = 6.0
_LOOK_SECONDS = 0.02


def do(order: Order, node: Node) -> Generator[float, None, None]:
    """`values`: rank. From now on the rank can open no file and no socket; those it has open it keeps."""
    rank, until = node.rank(order), time.monotonic() + _SECONDS_TO_START
    while not rank.pid:
        if rank.ended or time.monotonic() > until:
            raise FailedError(f"rank {rank.rank} has not started")
        yield _LOOK_SECONDS
    soft, hard = resource.prlimit(rank.pid, resource.RLIMIT_NOFILE)
    node.held[order.id] = (rank, soft)
    resource.prlimit(rank.pid, resource.RLIMIT_NOFILE, (_least_free_number(rank.pid), hard))


def undo(order: Order, node: Node) -> None:
    """Give the limit back, if the rank is still there."""
    rank, soft = node.held.pop(order.id, (None, 0))
    if rank is not None and rank.pid and not rank.ended:
        hard = resource.prlimit(rank.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(rank.pid, resource.RLIMIT_NOFILE, (soft, hard))


def _least_free_number(process: int) -> int:
    """The number that the next file would get: the kernel gives the smallest, and the limit is on numbers."""
    taken = {int(entry.name) for entry in Path(f"/proc/{process}/fd").iterdir()}
    return next(number for number in range(len(taken) + 1) if number not in taken)
