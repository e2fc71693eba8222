"""Render the measurements of bench/gpu.py as Markdown, next to the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
EIGHT, BARE, TURNS = "8 containers, MPS", "8 bare processes, MPS", "8 containers, by turns"
WITH_GPU, WITHOUT = "up of 8 nodes that share the GPU", "up of 8 nodes without a GPU"
MAX_MS = {16: 5.0, 32: 15.0, 48: 25.0}  # nodes: milliseconds of a step
_COLUMNS = {
    "step_ms": " ms",
    "large_step_ms": " ms",
    "latency_us": " µs",
    "all_reduce_ms": " ms",
    "bus_gigabytes_per_s": "",
}


def as_markdown(told: Mapping[str, Any]) -> str:
    """Return the page: goals next to measured values, then the medians and the spread of every contestant."""
    machine, runs = told["machine"], told["runs"]
    lines = [
        "# Nodes that share one GPU",
        "",
        "Written by `python3 -m bench.gpu`, in one run, contestants in turn. A step is one of DDP on four layers with 1 MiB of",
        "gradients (16 MiB: the large one), batch 32. A figure is the median over all runs of the median on rank 0",
        "[lowest–highest run]; a ratio is the median of the rounds' ratios.",
        "",
        f"{machine['gpu']}, driver {machine['driver']}; {machine['cores']} cores, {machine['memory']}; {machine['kernel']}; "
        f"Docker Engine {machine['engine']}, Compose {machine['compose']}; torch {machine['torch']}, Python {machine['python']}. "
        f"{told['date']}, commit {told['commit']}.",
        "",
        "| what | goal | measured | |",
        "|---|---|---|---|",
        *(
            f"| {what} | {goal} | {found} | {'reached' if reached else 'missed'} |"
            for what, goal, found, reached in _goals(runs)
        ),
        "",
        "| contestant | step | large step | all-reduce 8 B | 64 MiB | GB/s | runs |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, tries) for name, tries in runs.items() if not name.startswith("up of")),
        "",
    ]
    return "\n".join(lines)


def _goals(runs: Runs) -> list[tuple[str, str, str, bool]]:
    rows = []
    for what, figure, most, goal in (
        ("DDP step, 8 containers against 8 bare processes, both through MPS", "step_ms", 0.95, "≤ 0.95 ×"),
        ("all-reduce of 64 MiB, the same", "all_reduce_ms", 1 / 0.95, "≤ 1.05 × the time"),
        ("all-reduce of 8 bytes, the same", "latency_us", 1.5, "≤ 1.5 × the time"),
    ):
        own, bare = _values(runs, EIGHT, figure), _values(runs, BARE, figure)
        if ratios := [mine / theirs for mine, theirs in zip(own, bare, strict=False)]:
            found = f"{_spread(ratios, ' ×')} ({median(own):.2f} against {median(bare):.2f}{_COLUMNS[figure]})"
            rows.append((what, goal, found, median(ratios) <= most))
    step, turns = _values(runs, EIGHT, "step_ms"), _values(runs, TURNS, "step_ms")
    if step and turns:
        found = f"{median(turns) / median(step):.0f} × ({median(turns):.0f} ms by turns)"
        rows.append(
            (
                "DDP step, 8 containers against 8 that take turns",
                "≥ 40 × faster",
                found,
                median(turns) >= 40 * median(step),
            )
        )
    for count, most in MAX_MS.items():
        if own := _values(runs, f"{count} containers, MPS", "step_ms"):
            rows.append(
                (f"DDP step, {count} nodes on one GPU", f"≤ {most:g} ms", _spread(own, " ms"), median(own) <= most)
            )
    with_gpu, without = _values(runs, WITH_GPU, "up_s"), _values(runs, WITHOUT, "up_s")
    if with_gpu and without:
        added = median(with_gpu) - median(without)
        found = f"{added:.1f} s ({median(with_gpu):.1f} against {median(without):.1f} s)"
        rows.append(("the GPU part added to `up` of 8 nodes", "≤ 3 s", found, added <= 3))
    return rows


def _values(runs: Runs, name: str, figure: str) -> list[float]:
    """Return the figure of every run that has it."""
    return [float(each[figure]) for each in runs.get(name, ()) if figure in each]


def _spread(values: Sequence[float], unit: str) -> str:
    """Return the median and, of several values, the lowest and highest: `5.30 [5.10–6.02] ms`."""
    among = f" [{min(values):.2f}–{max(values):.2f}]" if len(values) > 1 else ""
    return f"{median(values):.2f}{among}{unit}"


def _row(name: str, tries: Sequence[Mapping[str, Any]]) -> str:
    good = [each for each in tries if "problem" not in each]
    if not good:
        return f"| {name} | {tries[0]['problem']} | – | – | – | – | {len(tries)} |"
    cells = [_spread([float(each[column]) for each in good], unit) for column, unit in _COLUMNS.items()]
    return f"| {name} | {' | '.join(cells)} | {len(good)} of {len(tries)} |"
