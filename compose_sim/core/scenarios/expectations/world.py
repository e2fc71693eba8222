"""Judge the rounds of the run, the faults in them, and how long ranks waited in collectives."""

from __future__ import annotations

from itertools import groupby

from compose_sim.core.scenarios.expectations import Evaluation, FinishedRun, inconclusive, measured
from compose_sim.core.units import format_seconds


def world_sizes(wanted: tuple[int, ...], run: FinishedRun) -> Evaluation:
    """Expect rounds of these sizes, one after another; rounds of the same size in a row count as one."""
    sizes = [int(event.data["world_size"]) for event in run.of("round") if "world_size" in event.data]
    seen = [size for size, _ in groupby(sizes)]
    if not seen:
        return inconclusive("there was no round: the nodes never met")
    return measured(" → ".join(map(str, seen)), seen, good=seen == [size for size, _ in groupby(wanted)])


def no_collective_over(limit: float, run: FinishedRun) -> Evaluation:
    """Expect that no rank waited longer than `limit` seconds in one collective, or in the all-reduce of a backward pass."""
    if not any(True for _ in run.of("init")):
        return inconclusive("no rank joined a process group")
    waits = [event for event in run.of("waited") if isinstance(event.data.get("seconds"), int | float)]
    if not waits:
        return measured("no rank waited long", 0.0, good=True)
    longest = max(waits, key=lambda event: float(event.data["seconds"]))
    seconds = float(longest.data["seconds"])
    detail = f"rank {longest.rank} waited {format_seconds(seconds)} in {longest.data.get('what')}"
    return measured(detail, round(seconds, 3), good=seconds <= limit)


def faults_at_least(least: int, run: FinishedRun) -> Evaluation:
    """Expect at least this many injected faults."""
    done = {event.data.get("id") for event in run.of("fault") if event.data.get("phase") == "done"}
    undone = {event.data.get("id") for event in run.of("refused")}
    count = len(done - undone)
    return measured(f"{count} were injected", count, good=count >= least)
