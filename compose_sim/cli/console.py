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


_SHORTEST_CELL = 12
_COPIED = ("Try: ", "Run it: ", "composesim ")
_WORD = re.compile(r" *[^ ]+| +$")
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


def show(text: str, *, hang: int | None = None, err: bool = False) -> None:
    """Print words of our own: on a terminal, wrapped to its width. `hang` is the indentation of continued lines."""
    width = screen_width(err=err)
    echo(wrapped(text, width, hang=hang) if width else text, err=err)


def screen_width(*, err: bool = False) -> int:
    """Return the columns of the terminal that stdout, or stderr, writes to; 0 if it is a file or a pipe."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        return 0
    named = os.environ.get("COLUMNS", "")
    return int(named) if named.isdecimal() and 0 < len(named) < 5 else os.get_terminal_size(stream.fileno()).columns


def say(text: str) -> None:
    """Print a message on stderr."""
    show(text, err=True)


def wrapped(text: str, width: int, *, hang: int | None = None) -> str:
    """
    Return text whose lines are broken at spaces to fit into `width` columns; colors take none.

    Continued lines are indented by `hang` columns, by default two more than the first. A word that is too long, such as a path, and
    a line with a command to copy stay whole.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        plain = _COLOR.sub("", line)
        if len(plain) <= width or plain.lstrip().startswith(_COPIED):
            lines.append(line)
            continue
        indent = len(plain) - len(plain.lstrip()) + 2 if hang is None else hang
        current, used = "", 0
        for word in _WORD.findall(line):
            columns = len(_COLOR.sub("", word))
            if used + columns > width and _COLOR.sub("", current).strip():
                lines.append(current)
                word = " " * min(indent, width // 2) + word.lstrip()
                current, used = "", 0
                columns = len(_COLOR.sub("", word))
            current, used = current + word, used + columns
        lines.append(current)
    return "\n".join(lines)


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
    if width := screen_width(err=err):
        _fit(header, cells, width)
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


def _fit(header: Sequence[str], cells: list[list[str]], width: int) -> None:
    """
    Make rows fit into `width` columns, if that leaves _SHORTEST_CELL of each cell.

    First the last column gives way, then the widest others; the first one, a name to copy, does not. Words in the last column are
    wrapped. Of a path the beginning is left out, whose end says more.
    """
    widths = [max([len(title), *(len(row[column]) for row in cells)]) for column, title in enumerate(header)]
    last, excess = len(header) - 1, sum(widths) + 2 * (len(header) - 1) - width
    for column in sorted(range(1, len(header)), key=lambda column: (column != last, -widths[column])):
        room = min(widths[column], max(widths[column] - excess, _SHORTEST_CELL))
        excess -= widths[column] - room
        widths[column] = room
    indent = f"\n{'':<{sum(widths[:-1]) + 2 * last}}"
    for row in cells:
        for column, room in enumerate(widths):
            if len(row[column]) > room and (column != last or " " not in row[column]):
                is_path = row[column].startswith(("/", "~"))
                row[column] = f"…{row[column][1 - room :]}" if is_path else f"{row[column][: room - 1]}…"
        row[-1] = wrapped(row[-1], widths[-1], hang=0).replace("\n", indent)


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


def print_page(markdown: str) -> None:
    """Print a page: laid out on a terminal, and as it is written elsewhere."""
    if not sys.stdout.isatty():
        echo(markdown.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=text_width(), highlight=False).print(Markdown(markdown, hyperlinks=False, code_theme="bw"))


def text_width() -> int:
    """Return how many columns text may take: those of the terminal, at most 100."""
    return max(60, min(shutil.get_terminal_size().columns, 100))
