"""What can happen in a run? The kinds of events, and how lines of text become events.

Nodes, the master and composesim itself append events as JSON lines; live view, verdict and report are folds over them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = frozenset(
    {
        # by a node's agent
        "node-started", "rendezvous", "rank-started", "rank-exited", "usage", "node-exited", "stalled", "resumed",
        "gpus", "start-failed",
        # by the service that lets nodes share a GPU
        "mps",
        # by composesim, of what runs beside the nodes
        "service",
        # by the code around the person's script
        "environment", "init", "step", "waited", "breakpoint", "exception", "script-ended",
        # by the master
        "master-started", "node-joined", "node-lost", "round", "ready", "ended",
        # by composesim
        "started", "node-stopped", "log", "metric", "hang", "stopping", "verdict", "note",
        # by composesim, of what a person does to the run (docs/run-folder.md)
        "fault", "heal", "link", "scale", "recovered", "refused",
        # by a node's agent, of an order that it was given
        "order",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened: `t` in Unix seconds, `data` by kind (the table is in docs/run-folder.md)."""

    t: float
    kind: str
    node: str | None = None
    rank: int | None = None
    generation: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self, run: str) -> str:
        """The event as one line of a run's event file."""
        fields = {"v": 1, "t": self.t, "run": run, "node": self.node, "rank": self.rank}
        return json.dumps(fields | {"generation": self.generation, "kind": self.kind, "data": dict(self.data)})


def parse_event(line: str) -> Event | None:
    """The event on a line of an event file; None for a line torn by a crash or of a kind not known here."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or fields.get("kind") not in KINDS or not isinstance(fields.get("t"), int | float):
        return None
    return Event(
        t=fields["t"],
        kind=fields["kind"],
        node=fields.get("node"),
        rank=fields.get("rank"),
        generation=fields.get("generation"),
        data=fields.get("data") or {},
    )


def parse_metric(line: str) -> dict[str, Any] | None:
    """The metric on a line of a rank's output: a JSON object with an integer `step`; None for any other line."""
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}") and '"step"' in text):
        return None
    try:
        metric = json.loads(text, parse_constant=str)  # NaN and Infinity are not JSON: a report holds them as text
    except json.JSONDecodeError:
        return None
    step = metric.get("step") if isinstance(metric, dict) else None
    return metric if isinstance(step, int) and not isinstance(step, bool) else None
