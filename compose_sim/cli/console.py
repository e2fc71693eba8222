"""
Write to the terminal: data on stdout, everything else on stderr, and color only on a terminal.

Any text may quote a script, a file or another program. The content must act neither on the terminal nor on the runner of a CI job,
so nothing else in `cli` writes to the terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import click

from compose_sim.core.events.events import printable

# Distinguishable on dark and light backgrounds; red is reserved for failures.
_NODE_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
# The mark and the color of a status
MARKS: dict[str, tuple[str, str | None]] = {
    "passed": ("✔", "green"),
    "failed": ("✘", "red"),
    "warned": ("!", "yellow"),
    "not-applicable": ("–", None),
}


_COLOR, _PLAIN = re.compile(r"\x1b\[([0-9;]*)m"), "\x1b[0m"
# What JSON may contain unescaped, and `printable` removes.
_UNESCAPED = re.compile("[\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print text on stdout, or on stderr if `err`; of control characters only newlines, tabs and colors remain."""
    text = printable(text) + ("\n" if nl else "")
    if in_github_job():
        import secrets

        from compose_sim.core.report.ci import without_commands  # imports the report: too slow for `--help`

        text = without_commands(text, token=secrets.token_hex(16))
    try:
        click.echo(text, nl=False, err=err)
    except BrokenPipeError:
        if not err:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # messages without a reader must not end a run


def echo_workflow_command(command: str, *, err: bool) -> None:
    """Print a workflow command that the runner of a GitHub Actions job is to execute."""
    click.echo(printable(command), err=err)


def in_github_job() -> bool:
    """Return whether a job of GitHub Actions runs this process."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def say(text: str) -> None:
    """Print a message on stderr."""
    echo(text, err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    echo(to_json_text(value, indent=2))


def to_json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON with every character escaped that a terminal would not print."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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

    echo(click.style(line(list(header)), bold=True), err=err)
    for row in cells:
        echo(line(row), err=err)


def verdict_line(word: str, text: str, *, status: str = "") -> str:
    """Return the last line of a run, with the mark of the status, which is the word unless another one is given."""
    mark, color = MARKS.get(status or word, MARKS["failed"])
    return click.style(f"{mark} {word}", fg=color, bold=True) + f"  {' '.join(text.splitlines())}"


@cache
def node_prefix(node: str, rank: int | None, width: int) -> str:
    """Return `node-1 | `, padded and in the color of the node, with the rank if it is not None."""
    label = node if rank is None else f"{node}.{rank}"
    number = node.rpartition("-")[2]
    color = _NODE_COLORS[int(number) % len(_NODE_COLORS)] if number.isdecimal() else "white"
    return click.style(f"{label:<{width}} | ", fg=color)


def line_of_node(node: str, rank: int | None, width: int, line: str) -> str:
    """Return a line that a node printed after the node's prefix. A color that it leaves open ends with it."""
    colors = _COLOR.findall(line)
    return node_prefix(node, rank, width) + line + (_PLAIN if colors and colors[-1].strip("0;") else "")


def is_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr.isatty()


def print_text(text: str) -> None:
    """Print a paragraph, indented, and wrapped to the width of the terminal."""
    echo(click.wrap_text(text, text_width(), initial_indent="  ", subsequent_indent="  "))


def text_width() -> int:
    """Return how many columns text may take: those of the terminal, at most 100."""
    return max(60, min(shutil.get_terminal_size().columns, 100))
