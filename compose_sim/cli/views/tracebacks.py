"""Leave out of the output on a terminal the tracebacks that the report shows, with less of torch and once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from compose_sim.core.report.tracebacks import BEGIN, raised_at
from compose_sim.core.verdict.root_cause import is_consequence

if TYPE_CHECKING:
    from compose_sim.core.events.events import Event
    from compose_sim.core.state.state import ClusterState, Failure

_PREFIX = re.compile(r"\[rank\d{1,9}\]: ?")  # torch's
_CHAINED = ("During handling of", "The above exception")


class UncaughtTracebacks:
    """Replaces the traceback that ends a rank by one line; the ranks whose traceback is being printed are in `_inside`."""

    def __init__(self) -> None:
        self._inside: set[tuple[str | None, int | None]] = set()

    def without(self, events: Iterable[Event], state: ClusterState) -> Iterator[Event]:
        """Yield the lines of output to print. A traceback of a rank that goes on is its own output."""
        for event in events:
            place, line = (event.node, event.rank), _PREFIX.sub("", str(event.data["line"]), count=1)
            rank = state.ranks.get(-1 if event.rank is None else event.rank)
            if line == BEGIN and rank and rank.exception:
                self._inside.add(place)
            elif place not in self._inside:
                yield event
            elif line.strip() and line[0] != " " and not line.startswith(_CHAINED):  # the exception itself
                self._inside.discard(place)
                ended = rank.exception if rank else None
                yield replace(event, data={**event.data, "line": _shortened(line, ended)})


def _shortened(line: str, ended: Failure | None) -> str:
    """Return the last line of a traceback; an error that only says that another rank has gone is not quoted in full."""
    if is_consequence(line):
        return f"{line.partition(':')[0]}: another rank has gone"
    at = raised_at(ended.traceback) if ended and ended.message.startswith(line) else None
    return f"{line} ({at.file.rpartition('/')[2]}, line {at.line})" if at else line
