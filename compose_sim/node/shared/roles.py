"""Build the command line of another process of this node."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = str(Path(__file__).resolve().parents[1] / "__main__.py")


def command(role: str, *arguments: str, options: tuple[str, ...] = ("-u",)) -> list[str]:
    """Return the command that runs a role (see `node/__main__.py`) in a new Python with these options."""
    return [sys.executable, *options, PROGRAM, role, *arguments]
