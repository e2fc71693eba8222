"""How do the results of checks read? One line each; below one that failed or warned the fix, the place and its page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.selection import complaints

_MARKS = {PASSED: ("✔", "green"), FAILED: ("✘", "red"), WARNED: ("!", "yellow"), NOT_APPLICABLE: ("–", None)}
_WIDTH = 118


def print_checks(results: Sequence[Mapping[str, Any]], *, err: bool = False) -> None:
    """The results in their order."""
    width = max((len(result["id"]) for result in results), default=0)
    for result in results:
        for line in result_lines(result, width):
            click.echo(line, err=err)


def result_lines(result: Mapping[str, Any], width: int) -> Iterable[str]:
    """`✘ set-epoch  ranks read the same order in epochs 0 and 1`, and below it what to do."""
    mark, colour = _MARKS[result["status"]]
    aside = result["status"] == NOT_APPLICABLE
    detail = f"not applicable: {result['detail']}" if aside else result["detail"]
    head = click.style(f"{mark} {result['id']:<{width}}", fg=colour, bold=not aside, dim=aside)
    yield head + click.style(f"  {' '.join(detail.split())}", dim=aside)
    if result not in complaints([result]):
        return
    if result["fix"]:
        yield from _labelled("fix", result["fix"])
    place = result["place"]
    yield from _labelled("at", f"{near(place['file'])}:{place['line']}") if place else ()
    yield from _labelled("page", f"composesim check --explain {result['id']}")


def near(file: str) -> str:
    """A path as it is seen from here: relative where it lies below this folder."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _labelled(label: str, text: str) -> Iterable[str]:
    first = f"    {label}: "
    # A line of code in a fix must stay whole, to be copied: only at spaces, and never within a word.
    for line in textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
    ):
        yield click.style(line[: len(first)], dim=True) + line[len(first) :]
