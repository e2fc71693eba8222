"""It is always known whether a rank waits for a debugger."""

from __future__ import annotations

from functools import reduce

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.verdict.hang import Breakpoint, breakpoint_after
from tests.builders import an_event

PLACE = {"file": "train.py", "line": 3, "socket": "node-1.1.9.sock"}
WAITING = an_event("breakpoint", rank=1, phase="waiting", **PLACE)
ATTACHED = an_event("breakpoint", rank=1, phase="attached", **PLACE)
RELEASED = an_event("breakpoint", rank=1, phase="released")


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ([], None),
        ([WAITING], "waiting"),
        ([WAITING, ATTACHED], "attached"),
        ([WAITING, ATTACHED, RELEASED], "released"),
        ([WAITING, ATTACHED, RELEASED, WAITING], "waiting"),
        ([RELEASED], None),
        ([WAITING, an_event("rank-exited", rank=1, exit_code=0)], None),
        ([WAITING, an_event("rank-started", rank=1)], None),
        ([an_event("breakpoint", rank=0, phase="waiting", **PLACE)], None),
        ([WAITING, an_event("rank-exited", rank=0, exit_code=0)], "waiting"),
    ],
)
def test_the_last_word_counts(events: list[Event], phase: str | None) -> None:
    stop: Breakpoint | None = reduce(lambda before, event: breakpoint_after(before, event, rank=1), events, None)

    assert (stop.phase if stop else None) == phase
    assert stop is None or (stop.node, stop.file, stop.line) == ("node-1", "train.py", 3)
