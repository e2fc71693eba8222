"""How does a node come to have no process left to start? A child of the agent takes all that its control group allows."""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from pathlib import Path

from . import FailedError, Node, Order

_SECONDS_TO_TAKE = 8.0  # composesim waits for 20
_LOOK_SECONDS = 0.02
_MOST = 16384  # each takes some of the kernel's memory


def do(order: Order, node: Node) -> Generator[float, None, None]:
    """Done when no more can be started; what runs already goes on."""
    limit = _limit() if node.contained else None
    if limit is None or limit > _MOST:
        raise FailedError("the node has no limit of processes of its own: the machine's would be used up")
    process, until = node.start(order, "balloon", "threads", str(limit)), time.monotonic() + _SECONDS_TO_TAKE
    assert process.stdout is not None
    while not select.select([process.stdout], [], [], 0)[0]:
        if time.monotonic() > until:
            node.let_go(order)
            raise FailedError(f"{limit} threads could not be started in {_SECONDS_TO_TAKE:g} s")
        yield _LOOK_SECONDS
    if process.poll() is not None:
        node.let_go(order)
        raise FailedError("the process that was to take all others ended")


def undo(order: Order, node: Node) -> None:
    """Processes can be started again."""
    node.let_go(order)


def _limit() -> int | None:
    for name in ("pids.max", "pids/pids.max"):  # control groups of version 2, and 1
        try:
            text = Path("/sys/fs/cgroup", name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
