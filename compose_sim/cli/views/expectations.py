"""Print the judged expectations of a scenario, one per line: what was expected and what was seen."""

from __future__ import annotations

from collections.abc import Sequence

import click

from compose_sim.cli.console import MARKS, echo
from compose_sim.core.report.report import ExpectationResult

_MARKS = {**MARKS, "inconclusive": ("?", "yellow")}
_LONGEST_DETAIL = 160


def print_expectations(results: Sequence[ExpectationResult], *, err: bool = False) -> None:
    """Print a blank line and the expectations, or nothing if there are none."""
    if not results:
        return
    echo(err=err)
    width = max(len(f"{result.id} {result.wanted}") for result in results)
    for result in results:
        mark, color = _MARKS[result.status]
        wanted = f"{result.id} {result.wanted}".ljust(width)
        detail = result.detail
        if len(detail) > _LONGEST_DETAIL:
            detail = detail[: _LONGEST_DETAIL - 1] + "…"
        echo(f"{click.style(mark, fg=color, bold=True)} {wanted}  {detail}", err=err)
