"""Name what Compose makes of a run: its project, and the container of each node."""

from __future__ import annotations


def project_name(run: str) -> str:
    """Return the name of a run's Compose project."""
    return f"composesim-{run}"


def container_name(run: str, node: str) -> str:
    """Return the name of the container of a node, as Compose chooses it."""
    return f"{project_name(run)}-{node}-1"
