"""Inject faults of all kinds at random for a given time, and count what is lost and what is left over."""

from __future__ import annotations

import re
import time
from collections import Counter
from statistics import median
from typing import Any

from bench.soak.leaks import left_of, shaped_links
from bench.soak.setting import Row, Soak

GOAL = 2000
RUN_S = 180.0  # per run; then another one begins, with another seed
MIN_RUN_S = 60.0  # in less time, not every step of the scenario gets its turn
_LINE = re.compile(r"line (\d+) of (\d+)")
_SCENARIO = {
    "docker": """
cluster: {nodes: 4, elastic: "2:4", max_restarts: 1000, memory: 700m, scratch: 16m}
steps:
- at: {every: 400ms}
  pick: any
  fault: {kind: [pause, stop, rank-stop], for: 200ms}
- at: {every: 500ms}
  pick: any
  fault: {kind: [rank-stop, corrupt-checkpoint], for: 200ms}
- at: {every: 1500ms}
  pick: any
  fault: {kind: [disk-full, rank-files-full, processes-full, corrupt-checkpoint], for: 300ms}
- at: {every: 2s}
  pick: any
  fault: {kind: cpu, limit: 0.3, for: 500ms}
- at: {every: 3s}
  pick: any
  fault: {kind: slow-link, rate: 20mbit, for: 500ms}
- at: {every: 4s}
  pick: any
  fault: {kind: [isolate, partition], for: 500ms}
- at: {every: 6s}
  pick: any
  fault: {kind: [rank-kill, rank-raise, rank-exit, rank-segfault, rank-abort, rank-term, rank-interrupt]}
- at: {every: 9s}
  pick: any
  fault: {kind: [kill, term, restart, memory], for: 500ms}
expect:
- nothing_left: true
""",
    "local": """
cluster: {nodes: 4, elastic: "2:4", max_restarts: 1000}
steps:
- at: {every: 400ms}
  pick: any
  fault: {kind: [pause, stop, rank-stop, rank-files-full, corrupt-checkpoint], for: 200ms}
- at: {every: 5s}
  pick: any
  fault: {kind: [kill, term, restart, rank-kill, rank-raise, rank-exit, rank-segfault, rank-abort, rank-term], for: 500ms}
expect:
- nothing_left: true
""",
}


def measure(soak: Soak) -> Row:
    """Run until there were enough faults, or the minutes are over; judge each run by itself, and count what it left."""
    known = {"kinds": {}, "seconds": [], "refused": 0, "lost": 0, "lines": 0, "failed": [], "left": [], "runs": 0}
    soak.progress = {**known, **soak.progress}
    now = soak.progress
    while (rest := soak.deadline - time.monotonic()) > MIN_RUN_S and _injected(now) < GOAL:
        _add_run(soak, now, patience_s=min(RUN_S, rest))
        soak.save()
    injected, seconds = _injected(now), now["seconds"]
    return Row(
        what="faults in one soak, nothing lost or left over",
        wanted=f"≥ {GOAL:,} injected (any mix), 0 leaked containers, networks, qdiscs, paused nodes",
        seen=f"{injected:,} injected of {len(now['kinds'])} kinds in {now['runs']} runs, {len(now['left'])} leaked, "
        f"{now['lost']} of {now['lines']:,} log lines lost, {len(seconds)} recoveries "
        f"(median {median(seconds or [0]):.2f} s, worst {max(seconds, default=0):.2f} s), {len(now['failed'])} runs failed",
        reached=injected >= GOAL and not now["left"] and not now["lost"] and not now["failed"],
        notes=[
            ", ".join(f"{kind} {count}" for kind, count in Counter(now["kinds"]).most_common()),
            f"{now['refused']} were refused: their node or rank had gone when their turn came",
            *now["failed"],
            *now["left"],
        ],
    )


def _injected(now: dict[str, Any]) -> int:
    return sum(now["kinds"].values())


def _add_run(soak: Soak, now: dict[str, Any], *, patience_s: float) -> None:
    """Play the scenario once, and add what was seen."""
    seed, name, shaped_before = soak.seed + now["runs"], soak.new_name(), shaped_links()
    report = soak.play(name, _SCENARIO[soak.engine], "soak_train.py", seed=seed, patience_s=patience_s)
    events = report["events"]
    no = {event["data"]["id"] for event in events if event["kind"] == "refused"}
    done = [event["data"] for event in events if event["kind"] == "fault" and event["data"]["phase"] == "done"]
    now["kinds"] = dict(Counter(now["kinds"]) + Counter(data["kind"] for data in done if data["id"] not in no))
    now["seconds"] += [float(event["data"]["seconds"]) for event in events if event["kind"] == "recovered"]
    now["failed"] += [f"seed {seed}: {_why(report)}"] if _has_failed(report) else []
    missing, told = _lines(soak, name)
    more = {"runs": 1, "refused": len(no), "lost": missing, "lines": told}
    now.update({key: now[key] + count for key, count in more.items()})
    now["left"] += left_of(name) + ["a shaped link"] * max(0, shaped_links() - shaped_before)
    print(f"  seed {seed}: {report.get('verdict')}, {_injected(now)} faults so far", flush=True)


def _has_failed(report: dict[str, Any]) -> bool:
    """Return whether a run did not pass; a rare fault that never found a free node is no failure."""
    cause = report.get("cause") or {}
    return report.get("verdict") != "passed" and not str(cause.get("message")).endswith("no valid choice was left")


def _why(report: dict[str, Any]) -> str:
    cause = report.get("cause") or report.get("error") or {}
    return f"{report.get('verdict')}: {cause.get('node')} {str(cause.get('message')).partition(chr(10))[0][:200]}"


def _lines(soak: Soak, name: str) -> tuple[int, int]:
    """Return (missing lines, present lines) in the output of ranks: between two lines of a round nothing may be missing."""
    missing = told = 0
    for path in soak.run_folder(name).glob("**/logs/*.*.log"):
        last: dict[str, int] = {}
        for line in path.read_text(errors="replace").splitlines():
            match = _LINE.fullmatch(line)
            if match:
                number, told = int(match[1]), told + 1
                missing += abs(number - last.get(match[2], 0) - 1)
                last[match[2]] = number
    return missing, told
