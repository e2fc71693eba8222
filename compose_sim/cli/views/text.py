"""Print paragraphs, wrapped to the width of the terminal."""

from __future__ import annotations

import shutil

import click

from compose_sim.cli.console import echo


def print_text(text: str) -> None:
    """Print a paragraph, indented, and wrapped to the width of the terminal."""
    echo(click.wrap_text(text, text_width(), initial_indent="  ", subsequent_indent="  "))


def text_width() -> int:
    """Return how many columns text may take: those of the terminal, at most 100."""
    return max(60, min(shutil.get_terminal_size().columns, 100))
