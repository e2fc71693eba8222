"""Whatever a rank writes as Horovod's timeline is read or ignored."""

from __future__ import annotations

import json
from typing import Any

from compose_sim.plugins.horovod.core.timeline import parse_timeline
from tests.fuzz.strategies import damaged, fuzz, lines_of

_TIMELINE = [
    {"ph": phase, "name": name, "ts": at, "pid": 1}
    for phase, name, at in [
        *(("B", "NEGOTIATE_ALLREDUCE", 1), ("X", "0", 2), ("E", "", 3)),
        *(("B", "ALLREDUCE", 4), ("E", "", 5)),
    ]
]


@fuzz(events=damaged(_TIMELINE, _TIMELINE * 2), more=lines_of(*_TIMELINE))
def test_timelines_of_horovod(events: Any, more: str) -> None:
    lines = [json.dumps(event) for event in (events if isinstance(events, list) else [events])]
    shares = parse_timeline(",\n".join([*lines, more]), file="timeline.json")
    assert shares is None or shares.seconds >= 0
