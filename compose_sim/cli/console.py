"""Write to the terminal: data on stdout, everything else on stderr, and colour only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

# Distinguishable on dark and light backgrounds; red is reserved for failures.
_NODE_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
_MARKS = {"passed": ("✔", "green"), "failed": ("✘", "red"), "warned": ("!", "yellow")}


def say(text: str, *, colour: str | None = None) -> None:
    """Print a message on stderr."""
    click.secho(text, fg=colour, err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, err: bool = False) -> None:
    """Print a table with aligned columns on stdout, or on stderr if `err`; numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(title), *(len(row[column]) for row in cells)]) for column, title in enumerate(header)]
    right = [bool(rows) and all(isinstance(row[column], int | float) for row in rows) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if end else cell.ljust(width) for cell, width, end in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    click.secho(line(list(header)), bold=True, err=err)
    for row in cells:
        click.echo(line(row), err=err)


def verdict_line(word: str, text: str) -> str:
    """Return the last line of a run."""
    mark, colour = _MARKS.get(word, _MARKS["failed"])
    return click.style(f"{mark} {word}", fg=colour, bold=True) + f"  {text}"


def node_prefix(node: str, rank: int | None, width: int) -> str:
    """Return `node-1 | `, padded and in the colour of the node, with the rank if it is not None."""
    label = node if rank is None else f"{node}.{rank}"
    number = node.rpartition("-")[2]
    colour = _NODE_COLOURS[int(number) % len(_NODE_COLOURS)] if number.isdigit() else "white"
    return click.style(f"{label:<{width}} | ", fg=colour)


def is_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr.isatty()
