"""Render the measurements of bench/gpu.py as Markdown, next to the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
EIGHT, BARE, TURNS = "8 containers, MPS", "8 bare processes, MPS", "8 containers, by turns"
WITH_GPU, WITHOUT = "up of 8 nodes that share the GPU", "up of 8 nodes without a GPU"
_COLUMNS = ("step_ms", "large_step_ms", "latency_us", "all_reduce_ms", "bus_gigabytes_per_s")


def as_markdown(told: Mapping[str, Any]) -> str:
    """Return the page: goals next to measured values, then the medians of every contestant."""
    machine, runs = told["machine"], told["runs"]
    lines = [
        "# Nodes that share one GPU",
        "",
        "Written by `python3 -m bench.gpu`, in one run. A step is one of DDP on four layers with 1 MiB of gradients (16 MiB: the",
        "large one), batch 32; figures are medians on rank 0, and where a contestant ran more than once, the median of its runs.",
        "",
        f"{machine['gpu']}, driver {machine['driver']}; {machine['cores']} cores, {machine['memory']}; {machine['kernel']}; "
        f"Docker Engine {machine['engine']}, Compose {machine['compose']}; torch {machine['torch']}, Python {machine['python']}. "
        f"{told['date']}, commit {told['commit']}.",
        "",
        "| what | goal | measured | |",
        "|---|---|---|---|",
        *(f"| {what} | {goal} | {found} | {verdict} |" for what, goal, found, verdict in _goals(runs)),
        "",
        "| contestant | step | large step | all-reduce 8 B | 64 MiB | GB/s | runs |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, tries) for name, tries in runs.items() if not name.startswith("up of")),
        "",
    ]
    return "\n".join(lines)


def _goals(runs: Runs) -> list[tuple[str, str, str, str]]:
    step, bare, turns = _of(runs, EIGHT, "step_ms"), _of(runs, BARE, "step_ms"), _of(runs, TURNS, "step_ms")
    moved, bare_moved = _of(runs, EIGHT, "all_reduce_ms"), _of(runs, BARE, "all_reduce_ms")
    with_gpu, without = _of(runs, WITH_GPU, "up_s"), _of(runs, WITHOUT, "up_s")
    rows = []
    if step and bare:
        found = f"{step / bare:.2f} × ({step:.2f} against {bare:.2f} ms)"
        rows.append(
            _judged(
                "DDP step, 8 containers with MPS, against 8 bare processes with MPS",
                "≤ 1.15 ×",
                found,
                step / bare <= 1.15,
            )
        )
    if step and turns:
        found = f"{turns / step:.0f} × ({turns:.0f} ms by turns)"
        rows.append(
            _judged("the same against 8 containers that take turns", "≥ 40 × faster", found, turns / step >= 40)
        )
    if moved and bare_moved:
        found = f"{bare_moved / moved:.2f} × ({moved:.1f} against {bare_moved:.1f} ms)"
        rows.append(
            _judged("64 MiB all-reduce, 8 containers with MPS", "≥ 0.95 × bare", found, bare_moved / moved >= 0.95)
        )
    for count, goal in ((16, 5.0), (32, 15.0)):
        if own := _of(runs, f"{count} containers, MPS", "step_ms"):
            rows.append(_judged(f"DDP step, {count} nodes on one GPU", f"≤ {goal:g} ms", f"{own:.2f} ms", own <= goal))
    if most := _of(runs, "48 containers, MPS", "step_ms"):
        rows.append(_judged("48 nodes on one GPU, MPS's limit", "train", f"{most:.1f} ms a step", True))
    if with_gpu and without:
        added = with_gpu - without
        found = f"{added:.1f} s ({with_gpu:.1f} against {without:.1f} s)"
        rows.append(_judged("the GPU part added to `up` of 8 nodes", "≤ 3 s", found, added <= 3))
    return rows


def _judged(what: str, goal: str, found: str, reached: bool) -> tuple[str, str, str, str]:
    return what, goal, found, "reached" if reached else "missed"


def _of(runs: Runs, name: str, figure: str) -> float | None:
    """Return the median over the runs that have this figure; None if no run has it."""
    values = [float(each[figure]) for each in runs.get(name, ()) if figure in each]
    return median(values) if values else None


def _row(name: str, tries: Sequence[Mapping[str, Any]]) -> str:
    good = [each for each in tries if "problem" not in each]
    if not good:
        return f"| {name} | {tries[0]['problem']} | – | – | – | – | {len(tries)} |"
    step, large, latency, moved, bus = (median(float(each[column]) for each in good) for column in _COLUMNS)
    return f"| {name} | {step:.2f} ms | {large:.1f} ms | {latency:.0f} µs | {moved:.1f} ms | {bus:.2f} | {len(good)} of {len(tries)} |"
