"""How does a node's disk come to be full? A file takes all that is left of its `--scratch`, a file system of its own in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from . import FailedError, Node, Order

_SMALLEST = 4096


def do(order: Order, node: Node) -> Generator[float, None, None]:
    """Done when not one more page can be written."""
    yield from ()
    scratch = os.environ.get("COMPOSESIM_SCRATCH")
    if not (scratch and node.contained and os.path.ismount(scratch)):
        raise FailedError("the node has no --scratch of its own: the disk would be this machine's")
    filler = _filler(scratch, order)
    file = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size, chunk = 0, _SMALLEST * os.statvfs(scratch).f_blocks
        while chunk >= _SMALLEST:
            try:
                os.posix_fallocate(file, size, chunk)
            except OSError:  # so much is not left
                chunk //= 2
            else:
                size += chunk
    finally:
        os.close(file)


def undo(order: Order, node: Node) -> None:
    """Take the file away; one of a container that has ended is gone with it."""
    scratch = os.environ.get("COMPOSESIM_SCRATCH")
    if scratch:
        with contextlib.suppress(FileNotFoundError):
            _filler(scratch, order).unlink()


def _filler(scratch: str, order: Order) -> Path:
    return Path(scratch, f".composesim-{order.id}")
