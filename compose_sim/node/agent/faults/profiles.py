"""Ask the ranks of this node for a profile of some steps (`rank/observers/profiles.py`)."""

from __future__ import annotations

from collections.abc import Generator

from ...shared.progress_page import ProgressPage
from .command import Command, CommandHandler, NodeContext


def _ask(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Set `values["first"]` and `values["steps"]` in the page of each rank of the latest round."""
    yield from ()
    first, steps = int(command.values["first"]), int(command.values["steps"])
    found = [
        (int(rank), int(generation))
        for path in (node.events.folder / "observations").glob(f"{node.events.node}.*.progress")
        for rank, _, generation in [path.stem[len(node.events.node) + 1 :].partition(".")]
        if rank.isdigit() and generation.isdigit()
    ]
    latest = max((generation for _, generation in found), default=0)
    for rank, generation in found:
        if generation == latest:
            page = ProgressPage(node.events.folder, node.events.node, rank, generation)
            page.set("profile_first", first)
            page.set("profile_steps", steps)


def _forget(_: Command, __: NodeContext) -> None:
    """A profile that has begun ends by itself."""


HANDLERS = {"profile": CommandHandler(_ask, _forget)}
