"""How is a real signal sent to one rank? By its agent, which knows the process: `KILL`, `SEGV`, `STOP`, any by its name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator

from . import FailedError, Node, Order

_SECONDS_TO_START = 6.0  # composesim waits for 20
_SECONDS_TO_END = 8.0  # with those before
_LOOK_SECONDS = 0.02


def do(order: Order, node: Node) -> Generator[float, None, None]:
    """`values`: rank, signal. Done once the rank has ended of it, if it does."""
    number = signal.Signals[f"SIG{order.values['signal']}"]
    rank, began = node.rank(order), time.monotonic()
    while not rank.pid:
        if rank.ended or time.monotonic() > began + _SECONDS_TO_START:
            raise FailedError(f"rank {rank.rank} has not started")
        yield _LOOK_SECONDS
    node.held[order.id] = rank
    os.kill(rank.pid, number)
    while number != signal.SIGSTOP and not rank.ended and time.monotonic() < began + _SECONDS_TO_END:
        yield _LOOK_SECONDS


def undo(order: Order, node: Node) -> None:
    """Let a stopped rank go on, if it is still there; no other signal can be taken back."""
    rank = node.held.pop(order.id, None)
    if rank is not None and rank.pid and not rank.ended:
        os.kill(rank.pid, signal.SIGCONT)
