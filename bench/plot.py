"""Draw curves on logarithmic axes as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 420, 60, 110, 34, 44
_COLORS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e")
_STYLE = "font: 13px system-ui, sans-serif; fill: #444"


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line through points, left to right; both coordinates are positive."""

    name: str
    points: Sequence[tuple[float, float]]


def log_log_plot(curves: Sequence[Curve], *, across: str, up: str) -> str:
    """Return the SVG: a tick at each horizontal coordinate and each power of ten upwards, and a name at the end of each curve."""
    xs = sorted({x for curve in curves for x, _ in curve.points})
    ys = [y for curve in curves for _, y in curve.points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def place(x: float, y: float) -> tuple[float, float]:
        right = (math.log(x) - math.log(xs[0])) / (math.log(xs[-1]) - math.log(xs[0]) or 1)
        above = (math.log10(y) - low) / (high - low or 1)
        return _LEFT + right * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - above * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH - _RIGHT, _HEIGHT - 8, across, anchor="end"),
        _text(6, 14, up),
    ]
    for x in xs:
        at, bottom = place(x, 10**low)
        parts.append(_text(at, bottom + 18, f"{x:g}", anchor="middle"))
    for power in range(low, high + 1):
        left, at = place(xs[0], 10**power)
        parts.append(f'<line x1="{left:.0f}" x2="{_WIDTH - _RIGHT}" y1="{at:.0f}" y2="{at:.0f}" stroke="#ddd"/>')
        parts.append(_text(left - 8, at + 4, f"{10.0**power:g}", anchor="end"))
    ends = _spread([place(*curve.points[-1])[1] for curve in curves])
    for curve, color, end in zip(curves, _COLORS, ends, strict=False):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve.points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(_text(_WIDTH - _RIGHT + 8, end + 4, curve.name, color=color))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _spread(heights: Sequence[float], gap: float = 16) -> list[float]:
    """Move heights apart, upwards first to last, so that names do not overlap."""
    placed: dict[int, float] = {}
    lowest = float("inf")
    for index in sorted(range(len(heights)), key=lambda each: -heights[each]):
        lowest = placed[index] = min(heights[index], lowest - gap)
    return [placed[index] for index in range(len(heights))]


def _text(x: float, y: float, text: str, *, anchor: str = "start", color: str = "#444") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" style="{_STYLE}; fill: {color}">{escape(text)}</text>'
