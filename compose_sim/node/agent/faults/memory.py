"""How does a node run out of memory? A balloon in its own control group grows until the kernel kills something there."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path

from .. import usage
from . import FailedError, Node, Order

_SECONDS_TO_BITE = 8.0  # composesim waits for 20
_LOOK_SECONDS = 0.02
_FIRST = "1000"
_LEFT_FOR_THE_MACHINE = 256 << 20


def do(order: Order, node: Node) -> Generator[float, None, None]:
    """
    Done once the kernel has killed; the balloon is let go of at once, so that the node has room to go on.

    The kernel takes ranks before the balloon: they are marked for it, as what a node runs out of memory by.
    """
    limit = _room(node)
    kills, until = usage.out_of_memory_kills(), time.monotonic() + _SECONDS_TO_BITE
    ranks = [rank.pid for rank in node.ranks if rank.pid and not rank.ended]
    scores = {rank: _score(rank, _FIRST) for rank in ranks}
    node.start(order, "balloon", "memory", str(limit))
    try:
        while usage.out_of_memory_kills() == kills:
            if time.monotonic() > until:
                raise FailedError(
                    f"the balloon has not come to the limit of {limit >> 20} MiB in {_SECONDS_TO_BITE:g} s"
                )
            yield _LOOK_SECONDS
    finally:
        node.let_go(order)
        for rank, score in scores.items():
            _score(rank, score)


def undo(order: Order, node: Node) -> None:
    """The balloon has gone already."""
    node.let_go(order)


def _room(node: Node) -> int:
    """The node's limit; FailedError where a balloon would be a danger to the machine."""
    sample = usage.sample(os.getpid(), contained=True) if node.contained else {}
    limit, used = sample.get("memory_limit_bytes"), sample.get("memory_bytes")
    if not limit:
        raise FailedError("the node has no memory limit of its own: a balloon would take the machine's")
    room, free = int(limit - (used or 0)), _free_on_the_machine()
    if room > free - _LEFT_FOR_THE_MACHINE:
        raise FailedError(f"the node may take {room >> 20} MiB more, and this machine has only {free >> 20} MiB left")
    return int(limit)


def _score(process: int, score: str) -> str:
    """How soon the kernel takes a process, until now; from now on `score`."""
    file = Path(f"/proc/{process}/oom_score_adj")
    try:
        before = file.read_text()
        file.write_text(score)
    except OSError:  # it has ended
        return score
    return before


def _free_on_the_machine() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
