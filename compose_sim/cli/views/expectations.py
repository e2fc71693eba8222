"""How do judged expectations read? One line each: what was wanted, and what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

_MARKS = {"passed": ("✔", "green"), "failed": ("✘", "red"), "inconclusive": ("?", "yellow")}
_WIDEST = 160


def print_expectations(results: Sequence[Mapping[str, Any]], *, err: bool = False) -> None:
    """The lines, below a blank one; nothing where nothing was expected."""
    if not results:
        return
    click.echo(err=err)
    wide = max(len(f"{result['id']} {result['wanted']}") for result in results)
    for result in results:
        mark, colour = _MARKS[result["status"]]
        wanted = f"{result['id']} {result['wanted']}".ljust(wide)
        detail = result["detail"] if len(result["detail"]) <= _WIDEST else result["detail"][: _WIDEST - 1] + "…"
        click.echo(f"{click.style(mark, fg=colour, bold=True)} {wanted}  {detail}", err=err)
