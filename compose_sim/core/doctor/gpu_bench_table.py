"""Show step and all-reduce times by number of nodes and GPU sharing mode, as table rows and as a plot in text or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log10
from typing import Any

from compose_sim.core.report.report import Report

HEADER = ("sharing", "nodes", "DDP step, 1 MiB", "DDP step, 16 MiB", "all-reduce 8 B", "all-reduce 64 MiB", "bus GB/s")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 360, 70, 40
_COLORS = {"mps": "#0072b2", "timeslice": "#d55e00", "own": "#009e73"}
_BAR = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run. `mode` is own, mps or timeslice; the large step has 16 MiB of gradients; `problem` is set if nothing was measured."""

    mode: str
    nodes: int
    step_ms: float | None = None
    large_step_ms: float | None = None
    latency_us: float | None = None
    all_reduce_ms: float | None = None
    bus_gigabytes_per_s: float | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as JSON values."""
        return asdict(self)


def sample_of(mode: str, nodes: int, report: Report) -> Sample:
    """Return what a run of `templates/bench/gpu.py` measured, or why it failed."""
    metrics = report.metrics
    if report.verdict != "passed" or "step_ms" not in metrics:
        problem = report.cause.first_line if report.cause else report.verdict
        return Sample(mode=mode, nodes=nodes, problem=problem)
    return Sample(
        mode=mode,
        nodes=nodes,
        step_ms=float(metrics["step_ms"]),
        large_step_ms=float(metrics["large_step_ms"]),
        latency_us=float(metrics["latency_us"]),
        all_reduce_ms=float(metrics["all_reduce_ms"]),
        bus_gigabytes_per_s=float(metrics["bus_gigabytes_per_s"]),
    )


def table_rows(samples: Sequence[Sample]) -> list[tuple[str, ...]]:
    """Return one row per run; a run that failed has the reason in place of the first number."""
    return [
        (each.mode, str(each.nodes), each.problem, "–", "–", "–", "–")
        if each.step_ms is None
        else (
            each.mode,
            str(each.nodes),
            f"{each.step_ms:.2f} ms",
            f"{each.large_step_ms:.2f} ms",
            f"{each.latency_us:.0f} µs",
            f"{each.all_reduce_ms:.1f} ms",
            f"{each.bus_gigabytes_per_s:.2f}",
        )
        for each in samples
    ]


def text_plot(samples: Sequence[Sample]) -> list[str]:
    """Return step times as bars on a logarithmic scale, because sharing modes differ by powers of ten."""
    measured = [each for each in samples if each.step_ms]
    if not measured:
        return []
    least = min(each.step_ms or 1.0 for each in measured)
    most = max(each.step_ms or 1.0 for each in measured)
    span = max(log10(most / least), 1e-9)
    lines = []
    for each in measured:
        share = log10((each.step_ms or least) / least) / span if most > least else 1.0
        bar = "█" * max(1, round(share * _BAR))
        lines.append(f"{each.mode:<9} {each.nodes:>3}  {bar} {each.step_ms:.2f} ms")
    return lines


def svg_plot(samples: Sequence[Sample]) -> str:
    """Return step time over nodes as SVG: one line per mode, on a logarithmic scale."""
    measured = [each for each in samples if each.step_ms]
    nodes = sorted({each.nodes for each in measured})
    times = [each.step_ms or 1.0 for each in measured]
    low, high = _decades(times)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for decade in range(low, high + 1):
        y = _y(10.0**decade, low, high)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - 20}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g} ms</text>')
    for count in nodes:
        parts.append(f'<text x="{_x(count, nodes):.1f}" y="{_HEIGHT - 16}" text-anchor="middle">{count}</text>')
    for row, mode in enumerate(dict.fromkeys(each.mode for each in measured)):
        points = [
            f"{_x(each.nodes, nodes):.1f},{_y(each.step_ms or 1.0, low, high):.1f}"
            for each in measured
            if each.mode == mode
        ]
        color = _COLORS.get(mode, "black")
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{_WIDTH - 100}" y="{20 + 16 * row}" fill="{color}">{mode}</text>')
    parts.append(f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 2}" text-anchor="middle">nodes</text>')
    return "\n".join([*parts, "</svg>", ""])


def _decades(times: Sequence[float]) -> tuple[int, int]:
    if not times:
        return 0, 1
    low, high = int(log10(min(times)) // 1), -int(-log10(max(times)) // 1)
    return low, max(high, low + 1)


def _x(count: int, nodes: Sequence[int]) -> float:
    return _LEFT + 20 + (_WIDTH - _LEFT - 60) * nodes.index(count) / max(1, len(nodes) - 1)


def _y(milliseconds: float, low: int, high: int) -> float:
    return 20 + (_HEIGHT - _BOTTOM - 20) * (high - log10(milliseconds)) / (high - low)
