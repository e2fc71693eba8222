"""Define events, and read them from lines of text.

Nodes, the master and composesim itself append events as JSON lines. Live view, verdict and report are folds over them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compose_sim.core.events.event_data import is_valid, read_object

# Writer -> the kinds of events that the file may hold. A node's agent and ranks share a file, NODE.jsonl.
KINDS_OF: Mapping[str, frozenset[str]] = {
    "composesim": frozenset(
        {
            *("started", "node-stopped", "hang", "stopping", "verdict", "note", "service"),
            *("fault", "heal", "link", "scale", "recovered", "refused"),  # what a user does to the run
        }
    ),
    "master": frozenset(
        {"master-started", "node-joined", "node-lost", "round", "ready", "ended", "connection-refused"}
    ),
    "mps": frozenset({"mps"}),
    "node": frozenset(
        {
            *(
                "node-started",
                "rendezvous",
                "rank-started",
                "rank-exited",
                "usage",
                "node-exited",
                "stalled",
                "resumed",
                "halted",
                "continued",
                "dumped",
            ),
            *("gpus", "start-failed", "command"),
            *(
                "environment",
                "feature-off",
                "init",
                "step",
                "waited",
                "breakpoint",
                "profiled",
                "exception",
                "script-ended",
            ),  # by the ranks
        }
    ),
}
READ_FROM_LOGS = frozenset({"log", "metric", "numbers"})  # from the output of ranks; not in any event file
KINDS = frozenset[str]().union(READ_FROM_LOGS, *KINDS_OF.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened: `t` in Unix seconds, `data` by kind (see docs/events.md)."""

    t: float
    kind: str
    node: str | None = None
    rank: int | None = None
    generation: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self, run: str) -> str:
        """Return the event as one line of an event file."""
        fields = {"v": 1, "t": self.t, "run": run, "node": self.node, "rank": self.rank}
        return json.dumps(fields | {"generation": self.generation, "kind": self.kind, "data": dict(self.data)})


def parse_event(line: str) -> Event | None:
    """Return the event on an untrusted line; None if it is torn, of an unknown kind, or has a field of the wrong type."""
    fields = read_object(line)
    kind = fields.get("kind") if fields else None
    if not fields or not isinstance(kind, str) or kind not in KINDS or not isinstance(fields.get("t"), int | float):
        return None
    node, rank, generation = (fields.get(name) for name in ("node", "rank", "generation"))
    data = fields.get("data") or {}
    numbers = [each for each in (rank, generation) if each is not None]
    if not isinstance(data, dict) or not isinstance(node, str | None) or not is_valid(kind, data):
        return None
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in numbers):
        return None
    return Event(t=fields["t"], kind=kind, node=node, rank=rank, generation=generation, data=data)


def parse_file_event(line: str, writer: str) -> Event | None:
    """
    Return the event on a line of `writer`.jsonl; None as well if that writer may not report it.

    Nodes report only about themselves: if a rank writes another node's end into its node's file, the event is ignored.
    """
    event = parse_event(line)
    if event is None or event.kind not in KINDS_OF.get(writer, KINDS_OF["node"]):
        return None
    return event if writer in KINDS_OF or event.node == writer else None


def parse_metric(line: str) -> dict[str, Any] | None:
    """
    Return the metric on a line of a rank's output: a JSON object with an integer `step`; None for any other line.

    JSON has no NaN and no Infinity: they become texts.
    """
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}") and '"step"' in text):
        return None
    metric = read_object(text, non_finite=str)
    step = metric.get("step") if metric else None
    return metric if isinstance(step, int) and not isinstance(step, bool) else None
