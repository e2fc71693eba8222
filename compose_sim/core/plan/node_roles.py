"""Build the command lines of the processes that run inside nodes (their roles are listed in `node/__main__.py`)."""

from __future__ import annotations


def role_words(folder: str, role: str, *arguments: str) -> tuple[str, ...]:
    """What follows `python` to start a role; `folder` is that of the run, as nodes see it."""
    return (f"{folder}/node/__main__.py", role, *arguments)
