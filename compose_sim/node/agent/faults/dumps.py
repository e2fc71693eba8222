"""Have the ranks of this node write what torch's flight recorder holds, and report where they are, while they run on."""

from __future__ import annotations

from collections.abc import Generator

from ..stalls.stall_detector import inspect_rank
from .command import Command, CommandHandler, NodeContext
from .profiles import latest_pages


def _dump(_: Command, node: NodeContext) -> Generator[float, None, None]:
    """Inspect each rank of the latest round, one after another, and emit an event about each."""
    processes = {rank.rank: rank.pid for rank in node.ranks if rank.pid and not rank.ended}
    for rank, generation, page in list(latest_pages(node)):
        if rank in processes:
            found = yield from inspect_rank(page, processes[rank], may_be_running=True)
            node.events.bind(rank=rank, generation=generation).emit("dumped", **found)


def _forget(_: Command, __: NodeContext) -> None:
    """A dump changes nothing that could be undone."""


HANDLERS = {"dump": CommandHandler(_dump, _forget)}
