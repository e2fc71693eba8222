"""Ask the ranks of this node for a profile of some steps (`rank/observers/profiles.py`)."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from ...shared.progress_page import ProgressPage
from .command import Command, CommandHandler, NodeContext


def _ask(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Set `values["first"]` and `values["steps"]` in the page of each rank of the latest round."""
    yield from ()
    for _, _, page in latest_pages(node):
        page.set("profile_first", int(command.values["first"]))
        page.set("profile_steps", int(command.values["steps"]))


def latest_pages(node: NodeContext) -> Iterator[tuple[int, int, ProgressPage]]:
    """Yield each rank of the latest round, the number of that round, and the page of the rank."""
    found = [
        (int(rank), int(generation))
        for path in (node.events.folder / "observations").glob(f"{node.events.node}.*.progress")
        for rank, _, generation in [path.stem[len(node.events.node) + 1 :].partition(".")]
        if rank.isdecimal() and generation.isdecimal()
    ]
    latest = max((generation for _, generation in found), default=0)
    for rank, generation in found:
        if generation == latest:
            yield rank, generation, ProgressPage(node.events.folder, node.events.node, rank, generation)


def _forget(_: Command, __: NodeContext) -> None:
    """A profile that has begun ends by itself."""


HANDLERS = {"profile": CommandHandler(_ask, _forget)}
