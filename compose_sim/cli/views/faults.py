"""How are faults, rounds and recoveries told? A line each, while they happen and in the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.state.fault_attribution import is_due_back
from compose_sim.core.state.state import ClusterState
from compose_sim.core.units import format_seconds
from compose_sim.core.verdict.verdict import NODES_MUST_COME_WITHIN_S, missing_nodes, missing_words

_MOST_FAULTS = 12
_MOST_ROUNDS = 12


def history_words(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(label, words) of each line of a report: its rounds where there were several, its links, its faults, its losses."""
    rounds = report.get("rounds", ())
    if len(rounds) > 1:
        yield "rounds", f"world size {_sizes([each['world_size'] for each in rounds])}"
    if report.get("links"):
        yield "links", " ".join(report["links"])
    recoveries = {each["fault"]: each for each in report.get("recoveries", ())}
    lines = [fault_words(fault, recoveries.get(fault["id"])) for fault in report["faults"]]
    lines += [
        f"{_first_line(each['cause'])}; {_go_on(each)}" for each in report.get("recoveries", ()) if not each["fault"]
    ]
    for index, line in enumerate(lines[:_MOST_FAULTS]):
        yield "" if index else "faults" if report["faults"] else "losses", line
    if len(lines) > _MOST_FAULTS:
        yield "", f"and {len(lines) - _MOST_FAULTS} more: add --json"


def fault_words(fault: Mapping[str, Any], recovery: Mapping[str, Any] | None) -> str:
    """`fault-1: node-1 killed; 3 nodes go on after 1.4 s, 2 steps lost; back after 10 s`."""
    parts = [f"{fault['id']}: {fault['text']}", _go_on(recovery) if recovery else ""]
    if fault.get("back_s") is not None:
        parts.append(f"back after {format_seconds(fault['back_s'])}")
    elif fault["healed_s"] is not None:
        parts.append(f"healed after {format_seconds(max(0.0, fault['healed_s'] - fault['begun_s']))}")
    return "; ".join(part for part in parts if part)


def event_words(event: Event, state: ClusterState) -> str:
    """What a person is told of an event as it happens; nothing of most."""
    told = _TOLD.get(event.kind)
    return told(event, state) if told else ""


def waiting_words(state: ClusterState) -> str:
    """What an elastic run waits for, where it has too few nodes to go on; nothing where it has enough."""
    missing = missing_nodes(state) if state.elastic else ()
    if not missing:
        return ""
    names = ", ".join(node.name for node in missing)
    if any(is_due_back(state, node.name) for node in missing):
        return f"{missing_words(state)}: waiting for {names}"
    come = "comes" if len(missing) == 1 else "come"
    within = f"{NODES_MUST_COME_WITHIN_S:.0f} s"
    return f"{missing_words(state)}: the run is stopped in {within}, unless {names} {come} back (composesim heal)"


def _fault(event: Event, _: ClusterState) -> str:
    data = event.data
    for_s = f" for {format_seconds(data['for_s'])}" if data.get("for_s") else ""
    return f"{data.get('id')}: {data.get('text')}{for_s}" if data.get("phase") == "begun" else ""


def _heal(event: Event, state: ClusterState) -> str:
    fault = state.faults.get(str(event.data.get("id")))
    what = f" ({fault.text})" if fault else ""
    return f"{event.data.get('id')} is healed{what}" if event.data.get("phase") == "done" else ""


def _link(event: Event, _: ClusterState) -> str:
    return f"links: {event.data.get('text') or ' '.join(event.data.get('links') or ()) or 'plain'}"


def _scale(event: Event, _: ClusterState) -> str:
    names = event.data.get("names") or ()
    return f"scaled to {_count(len(names), 'node')}: {', '.join(names)}"


def _refused(event: Event, _: ClusterState) -> str:
    hint = f" Try: {event.data['hint']}" if event.data.get("hint") else ""
    return f"{event.data.get('id')} was refused: {event.data.get('message')}.{hint}"


def _round(event: Event, _: ClusterState) -> str:
    """Of a later round only: the first is told as the rendezvous."""
    if not event.generation or event.node != "master":
        return ""
    nodes, size = event.data.get("nodes") or (), event.data.get("world_size")
    return f"round {event.generation + 1}: world size {size} on {', '.join(nodes)}"


def _recovered(event: Event, state: ClusterState) -> str:
    nodes = next((each.nodes for each in state.rounds if each.generation == event.data.get("generation")), ())
    whose = event.data.get("id") or _first_line(str(event.data.get("cause")))
    return f"recovered from {whose}: {_go_on({**event.data, 'nodes': nodes})}"


def _go_on(recovery: Mapping[str, Any]) -> str:
    """`3 nodes go on after 1.4 s, 2 steps lost`."""
    nodes = len(recovery.get("nodes") or ())
    who = _count(nodes, "node") if nodes else _count(recovery["world_size"], "rank")
    lost = recovery.get("steps_lost")
    steps = "" if lost is None else f", {_count(lost, 'step') if lost else 'no step'} lost"
    return f"{who} {'goes' if who.startswith('1 ') else 'go'} on after {format_seconds(recovery['seconds'])}{steps}"


def _sizes(sizes: list[int]) -> str:
    """`4 → 3 → 4`; of many the last ones."""
    changes = [size for size, _ in groupby(sizes)]
    left_out = len(changes) > _MOST_ROUNDS
    words = " → ".join(map(str, changes[-_MOST_ROUNDS:]))
    again = f" in {_count(len(sizes), 'round')}" if len(sizes) != len(changes) or left_out else ""
    return ("… → " if left_out else "") + words + again


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


_TOLD = {
    "fault": _fault,
    "heal": _heal,
    "link": _link,
    "scale": _scale,
    "refused": _refused,
    "round": _round,
    "recovered": _recovered,
}
