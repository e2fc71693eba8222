"""Follow, from the events of a rank, at which breakpoint it waits for a debugger."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compose_sim.core.events.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    """A rank that has stopped at `breakpoint()`; `phase` is waiting, attached or released."""

    node: str
    file: str
    line: int
    socket: str  # the name in the `debug/` folder of the run
    phase: str


def breakpoint_after(before: Breakpoint | None, event: Event, *, rank: int) -> Breakpoint | None:
    """Return the breakpoint of a rank after one more event; None once the process has exited or was started again."""
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
    return Breakpoint(
        node=event.node or "",
        file=str(data.get("file", "")),
        line=int(data.get("line", 0)),
        socket=str(data.get("socket", "")),
        phase=phase,
    )
