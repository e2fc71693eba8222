"""Build and parse the command lines of this node's processes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve().parents[1] / "__main__.py")


def command(role: str, *arguments: str, options: tuple[str, ...] = ("-u",)) -> list[str]:
    """Return the command that runs a role (see `node/__main__.py`) in a new Python with these options."""
    return [sys.executable, *options, PROGRAM, role, *arguments]


def add_passthrough(parser: argparse.ArgumentParser, name: str, *, help: str) -> None:
    """Add the last argument of a parser: the arguments after `--`, as a list."""
    parser.add_argument(name, nargs=argparse.REMAINDER, action=_Passthrough, help=help)


class _Passthrough(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, [*values[1:]] if values[:1] == ["--"] else [*values])
