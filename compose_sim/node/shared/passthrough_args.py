"""What stands behind `--` on a command line of ours? The words of somebody else's, as they are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class _Words(argparse.Action):
    """All that is left, without the `--` itself."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        words: Sequence[str] = values
        setattr(namespace, self.dest, [*words[1:]] if words[:1] == ["--"] else [*words])


def add_words(parser: argparse.ArgumentParser, name: str, *, help: str) -> None:
    """The last argument of a parser: a list of words, empty where there are none."""
    parser.add_argument(name, nargs=argparse.REMAINDER, action=_Words, help=help)
