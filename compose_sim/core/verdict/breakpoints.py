"""Where does a rank wait for a debugger? The last word of its events on the matter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compose_sim.core.events.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A rank at `breakpoint()`: `phase` is waiting, attached or released."""

    node: str
    file: str
    line: int
    socket: str  # its name below the run's `debug/`
    phase: str


def stop_after(before: Stop | None, event: Event, *, rank: int) -> Stop | None:
    """Where that rank stands after one more event: None once its process has ended or been started anew."""
    if event.rank != rank:
        return before
    if event.kind in ("rank-started", "rank-exited"):
        return None
    if event.kind != "breakpoint":
        return before
    data = event.data
    phase = str(data.get("phase", "waiting"))
    if phase == "released":
        return replace(before, phase=phase) if before else None
    return Stop(
        node=event.node or "",
        file=str(data.get("file", "")),
        line=int(data.get("line", 0)),
        socket=str(data.get("socket", "")),
        phase=phase,
    )
