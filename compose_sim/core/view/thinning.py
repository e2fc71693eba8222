"""Leave out what is too much for one file: steps, points of metrics and lines of logs; what is left out is told."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from compose_sim.core.view.page import Message

_OF_A_PROBLEM = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL|WARN(?:ING)?|Traceback)\b|\w(?:Error|Exception|Warning)\b|^[EW]\d{4} "
)
# Colors, and torch's name of a rank
_DECORATION = re.compile(r"^(?:\x1b\[[0-9;]{0,20}m)?\[rank\d{1,9}\]: ?|\x1b\[[0-9;]{0,20}m")
_FIRST_LINES = 500  # of each rank
MAX_POINTS = 1_000  # of one metric of one rank
_GAP = -1  # instead of a rank: where lines are left out
_LONGEST_READ = 2000  # characters of a line in which problems are searched


def thin(message: Message, *, most_spans: int, most_points: int, most_log_bytes: int) -> Message:
    """Return a message of a finished run that is not too large for one file; `left_out` says what is missing."""
    left_out = []
    stride = -(-len(message["spans"]) // most_spans) or 1
    spans = [span for span in message["spans"] if span[4] % stride == 0 or span[3] >= 100_000]
    lines = message["lines"][:: -(-len(message["lines"]) // most_spans) or 1]
    if stride > 1:
        left_out.append(f"The timeline shows every {stride}th step, and what took longer than 0.1 s.")
    logs, missing = _thinned_logs(message["logs"], most_log_bytes)
    if missing:
        left_out.append(f"{missing} lines of the logs are not in this file: they are in the folder of the run.")
    now = {**message["now"], "left_out": left_out, "lines_left_out": missing}
    metrics = thinned_points(message["metrics"], most_points)
    return {**message, "now": now, "spans": spans, "lines": lines, "metrics": metrics, "logs": logs}


def thinned_points(points: list[list[Any]], most: int) -> list[list[Any]]:
    """Return no more than `most` points of each metric of each rank, at equal distances."""
    counts: Counter[tuple[Any, ...]] = Counter((name, rank) for name, rank, *_ in points)
    seen: Counter[tuple[Any, ...]] = Counter()
    kept = []
    for point in points:
        key = (point[0], point[1])
        if seen[key] % (-(-counts[key] // most)) == 0:
            kept.append(point)
        seen[key] += 1
    return kept


def compared(message: Message) -> Message:
    """Return what the page of another run shows of this one beside it."""
    shown = thin(message, most_spans=1, most_points=MAX_POINTS, most_log_bytes=0)
    return {name: shown[name] for name in ("now", "metrics")}


def _thinned_logs(lines: list[list[Any]], most_bytes: int) -> tuple[list[list[Any]], int]:
    """
    Return problems, the first lines of each rank and the last lines of all, with a row for each gap, and how many lines are missing.

    Problems take at most half of the bytes, and first lines a quarter.
    """
    chosen: set[int] = set()
    seen: Counter[int | None] = Counter()
    problems, firsts, in_traceback = [], [], set[int | None]()
    for at, (rank, printed, _) in enumerate(lines):
        line = _DECORATION.sub("", printed[:_LONGEST_READ])
        seen[rank] += 1
        if seen[rank] <= _FIRST_LINES:
            firsts.append(at)
        if (rank in in_traceback) or _OF_A_PROBLEM.search(line):
            problems.append(at)
        if line.startswith("Traceback"):
            in_traceback.add(rank)
        elif not line.startswith((" ", "\t")):
            in_traceback.discard(rank)
    left = most_bytes
    for part, least in ((problems, most_bytes // 2), (firsts, most_bytes // 4), (range(len(lines) - 1, -1, -1), 0)):
        for at in part:
            size = 0 if at in chosen else len(lines[at][1]) + 24
            if left - size < least:
                break
            chosen.add(at)
            left -= size
    kept: list[list[Any]] = []
    before = -1
    for at in sorted(chosen):
        if at > before + 1:
            kept.append([_GAP, f"{at - before - 1} lines are left out here", lines[at][2]])
        kept.append(lines[at])
        before = at
    return kept, len(lines) - len(chosen)
