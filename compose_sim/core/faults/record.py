"""Record a fault: what happened, when, to which nodes, and when it was healed. State, events and report share this record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.faults.kind import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """One injected fault. Times are Unix seconds; None means that it has not happened yet."""

    id: str
    kind: str
    nodes: tuple[str, ...] = ()
    rank: int | None = None
    text: str = ""
    for_s: float | None = None
    loses: tuple[str, ...] = ()  # the fault explains the loss of these nodes, and the end of ranks on them
    lasts: bool = True
    begun_at: float = 0.0  # just before the first action
    done_at: float | None = None
    heal_begun_at: float | None = None
    healed_at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values that the report, `fault --json` and the events of the fault have in common."""
        return {
            "id": self.id,
            "kind": self.kind,
            "nodes": list(self.nodes),
            "rank": self.rank,
            "text": self.text,
            "for_s": self.for_s,
        }

    def event_data(self, phase: str) -> dict[str, Any]:
        """Return the data of a `fault` event, from which `record_of_event` restores the record."""
        return {**self.to_dict(), "loses": list(self.loses), "lasts": self.lasts, "phase": phase}


def record_of_effect(identity: str, effect: Effect) -> FaultRecord:
    """Return the record of a fault that is about to be injected."""
    fault = effect.fault
    return FaultRecord(
        id=identity,
        kind=fault.kind,
        nodes=fault.nodes,
        rank=fault.rank,
        text=effect.text,
        for_s=fault.for_s,
        loses=effect.loses,
        lasts=effect.lasts,
    )


def record_of_event(event: Event) -> FaultRecord:
    """Return the record that a `fault` event describes."""
    data = event.data
    return FaultRecord(
        id=str(data.get("id", "")),
        kind=str(data.get("kind", "")),
        nodes=tuple(data.get("nodes") or ()),
        rank=data.get("rank"),
        text=str(data.get("text", "")),
        for_s=data.get("for_s"),
        loses=tuple(data.get("loses") or ()),
        lasts=bool(data.get("lasts", True)),
        begun_at=event.t,
        done_at=event.t if data.get("phase") == "done" else None,
    )
