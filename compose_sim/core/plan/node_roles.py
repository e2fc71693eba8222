"""Build the command lines of processes in nodes (`node/__main__.py` lists their roles)."""

from __future__ import annotations


def role_command(folder: str, role: str, *arguments: str) -> tuple[str, ...]:
    """Return the arguments of `python` that start a role; `folder` is the run's folder in the nodes."""
    return (f"{folder}/node/__main__.py", role, *arguments)
