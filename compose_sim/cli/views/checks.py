"""Print the results of checks, with the fix, the place and the page below each failure or warning, and judged expectations."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from compose_sim.cli.console import MARKS, echo
from compose_sim.core.report.report import CheckResult, ExpectationResult

_WIDTH = 118
_MARKS = {**MARKS, "inconclusive": ("?", "yellow")}
_LONGEST_DETAIL = 160


def print_checks(results: Sequence[CheckResult], *, err: bool = False) -> None:
    """Print the results in the given order."""
    width = max((len(result.id) for result in results), default=0)
    for result in results:
        for line in result_lines(result, width):
            echo(line, err=err)


def result_lines(result: CheckResult, width: int) -> Iterable[str]:
    """Yield `✘ set-epoch  ranks read the same order in epochs 0 and 1`, and what to do about it."""
    mark, color = MARKS[result.status]
    dim = result.status == "not-applicable"
    detail = f"not applicable: {result.detail}" if dim else result.detail
    head = click.style(f"{mark} {result.id:<{width}}", fg=color, bold=not dim, dim=dim)
    yield head + click.style(f"  {' '.join(detail.split())}", dim=dim)
    if not result.is_problem:
        return
    if result.follows:
        yield from _labeled("follows from", result.follows)
    elif result.fix:
        yield from _labeled("fix", result.fix)
    if result.place:
        yield from _labeled("at", f"{relative(Path(result.place.file), Path.cwd())}:{result.place.line}")
    yield from _labeled("page", f"composesim check --explain {result.id}")


def relative(file: Path, folder: Path) -> str:
    """Return a path relative to a folder if the file is below it."""
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)


def _labeled(label: str, text: str) -> Iterable[str]:
    first = f"    {label}: "
    # Wrap only at spaces, so that a path or a call in a fix can be copied whole.
    for line in textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
    ):
        yield click.style(line[: len(first)], dim=True) + line[len(first) :]


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
