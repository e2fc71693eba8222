"""Parse command lines that end with `--` and the arguments of another program."""

from __future__ import annotations

import argparse
from typing import Any


class _Passthrough(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, [*values[1:]] if values[:1] == ["--"] else [*values])


def add_passthrough(parser: argparse.ArgumentParser, name: str, *, help: str) -> None:
    """Add the last argument of a parser: the arguments after `--`, as a list."""
    parser.add_argument(name, nargs=argparse.REMAINDER, action=_Passthrough, help=help)
