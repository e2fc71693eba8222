"""Measure how soon training continues after a node was killed, for every node."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.soak.setting import Row, Soak

KILLS = 20
NODES = 4
PATIENCE_S = 1200.0


def measure(soak: Soak) -> Row:
    """Kill each node in turn, node 0 first, twenty times in one run; wait for a complete rendezvous in between."""
    first = "{rank: 0, step: 30}"
    again = "{event: round, world_size: 4, after: 2s}"
    steps = "".join(
        f"- at: {again if kill else first}\n  fault: {{kind: kill, node: node-{kill % NODES}, for: 1s}}\n"
        for kill in range(KILLS)
    )
    text = f'cluster: {{nodes: {NODES}, elastic: "2:{NODES}"}}\nsteps:\n{steps}'
    name = soak.new_name()
    report = soak.play(name, text, "soak_train.py", enough=_all_recovered, patience_s=PATIENCE_S)
    recovered = [event["data"] for event in report["events"] if event["kind"] == "recovered"]
    killed = sum(event["kind"] == "fault" and event["data"]["phase"] == "done" for event in report["events"])
    seconds = sorted(float(each["seconds"]) for each in recovered) or [0.0]
    lost = [each["steps_lost"] for each in recovered if each["steps_lost"] is not None]
    good = len(recovered) >= killed == KILLS and median(seconds) <= 1.5 and max(seconds) <= 3
    return Row(
        what="recovery after a killed node, any node, node 0 included (kill to first new step)",
        wanted=f"{KILLS} of {KILLS}, median ≤ 1.5 s, worst ≤ 3 s",
        seen=f"{len(recovered)} of {killed}, median {median(seconds):.2f} s, worst {max(seconds):.2f} s",
        reached=good,
        notes=[
            f"seconds in order: {', '.join(f'{each:.2f}' for each in seconds)}",
            f"steps lost: {min(lost, default=0)}–{max(lost, default=0)}",
        ],
    )


def _all_recovered(events: list[dict[str, Any]]) -> bool:
    return sum(event["kind"] == "recovered" for event in events) >= KILLS
