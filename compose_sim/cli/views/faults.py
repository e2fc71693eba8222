"""Describe faults, rounds and recoveries, one line each, while they happen and in the report."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePath

from compose_sim.core.events.events import Event
from compose_sim.core.report.make_report import recovery_reports
from compose_sim.core.report.report import FaultReport, RecoveryReport, Report
from compose_sim.core.state.fault_attribution import is_due_back
from compose_sim.core.state.state import ClusterState
from compose_sim.core.text import format_count, format_seconds
from compose_sim.core.verdict.verdict import NODES_MUST_COME_WITHIN_S, missing_nodes, too_few_nodes_message

_MAX_FAULTS = 12
_MAX_ROUNDS = 12


def history_lines(report: Report) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for the rounds if there were several, the links, and each fault and loss."""
    if len(report.rounds) > 1:
        yield "rounds", f"world size {_sizes([each.world_size for each in report.rounds])}"
    if report.links:
        yield "links", " ".join(report.links)
    recoveries = {each.fault: each for each in report.recoveries}
    lines = [fault_line(fault, recoveries.get(fault.id)) for fault in report.faults]
    lines += [f"{_first_line(each.cause)}; {_recovery(each)}" for each in report.recoveries if not each.fault]
    for index, line in enumerate(lines[:_MAX_FAULTS]):
        yield "" if index else "faults" if report.faults else "losses", line
    if len(lines) > _MAX_FAULTS:
        yield "", f"and {len(lines) - _MAX_FAULTS} more: add --json"


def fault_line(fault: FaultReport, recovery: RecoveryReport | None) -> str:
    """Return `fault-1: node-1 killed; 3 nodes continued after 1.4 s, 2 steps lost; back after 10 s`."""
    parts = [f"{fault.id}: {fault.text}"]
    if fault.checkpoint:
        parts.append(f"wrote '{PurePath(fault.checkpoint).name}' after {format_seconds(fault.checkpoint_s or 0.0)}")
    elif fault.kind == "preempt":
        parts.append("no checkpoint was written")
    if recovery:
        parts.append(_recovery(recovery))
    if fault.back_s is not None:
        parts.append(f"back after {format_seconds(fault.back_s)}")
    elif fault.healed_s is not None:
        parts.append(f"healed after {format_seconds(max(0.0, fault.healed_s - (fault.begun_s or 0.0)))}")
    return "; ".join(parts)


def event_line(event: Event, state: ClusterState) -> str:
    """Return what the live view prints about an event; "" for most events."""
    describe = _DESCRIPTIONS.get(event.kind)
    return describe(event, state) if describe else ""


def waiting_line(state: ClusterState) -> str:
    """Return which nodes an elastic run with too few nodes waits for; "" if it has enough."""
    missing = missing_nodes(state) if state.elastic else ()
    if not missing:
        return ""
    names = ", ".join(node.name for node in missing)
    if any(is_due_back(state, node.name) for node in missing):
        return f"{too_few_nodes_message(state)}: waiting for {names}"
    within = f"{NODES_MUST_COME_WITHIN_S:.0f} s"
    return f"{too_few_nodes_message(state)}: the run stops in {within} unless {names} can rejoin (composesim heal)"


def _fault(event: Event, _: ClusterState) -> str:
    data = event.data
    for_s = f" for {format_seconds(data['for_s'])}" if data.get("for_s") else ""
    return f"{data.get('id')}: {data.get('text')}{for_s}" if data.get("phase") == "begun" else ""


def _heal(event: Event, state: ClusterState) -> str:
    fault = state.faults.get(str(event.data.get("id")))
    what = f" ({fault.text})" if fault else ""
    return f"healed {event.data.get('id')}{what}" if event.data.get("phase") == "done" else ""


def _link(event: Event, _: ClusterState) -> str:
    return f"links: {event.data.get('text') or ' '.join(event.data.get('links') or ()) or 'plain'}"


def _scale(event: Event, _: ClusterState) -> str:
    names = event.data.get("names") or ()
    return f"scaled to {format_count(len(names), 'node')}: {', '.join(names)}"


def _refused(event: Event, _: ClusterState) -> str:
    hint = f" Try: {event.data['hint']}" if event.data.get("hint") else ""
    return f"{event.data.get('id')} was refused: {event.data.get('message')}.{hint}"


def _round(event: Event, _: ClusterState) -> str:
    """Describe a round other than the first, which is reported as the rendezvous."""
    if not event.generation or event.node != "master":
        return ""
    nodes, size = event.data.get("nodes") or (), event.data.get("world_size")
    return f"round {event.generation + 1}: world size {size} on {', '.join(nodes)}"


def _recovered(event: Event, state: ClusterState) -> str:
    recovery = next((each for each in reversed(recovery_reports(state)) if each.fault == event.data.get("id")), None)
    return f"recovered from {recovery.fault or _first_line(recovery.cause)}: {_recovery(recovery)}" if recovery else ""


def _recovery(recovery: RecoveryReport) -> str:
    """Return `3 nodes continued after 1.4 s, 2 steps lost`."""
    nodes = len(recovery.nodes)
    who = format_count(nodes, "node") if nodes else format_count(recovery.world_size, "rank")
    steps = recovery.steps_lost  # as far as metric lines show, which may come every few steps
    lost = "" if steps is None else f", {format_count(steps, 'step') if steps else 'no reported step'} lost"
    return f"{who} continued after {format_seconds(recovery.seconds)}{lost}"


def _sizes(sizes: list[int]) -> str:
    """Return `4 → 3 → 4`, or the last ones if there are many."""
    changes = [size for size, _ in groupby(sizes)]
    left_out = len(changes) > _MAX_ROUNDS
    shown = " → ".join(map(str, changes[-_MAX_ROUNDS:]))
    rounds = f" in {format_count(len(sizes), 'round')}" if len(sizes) != len(changes) or left_out else ""
    return ("… → " if left_out else "") + shown + rounds


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


_DESCRIPTIONS = {
    "fault": _fault,
    "heal": _heal,
    "link": _link,
    "scale": _scale,
    "refused": _refused,
    "round": _round,
    "recovered": _recovered,
}
