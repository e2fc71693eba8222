"""Does this Python have a PaddlePaddle that will do? Told from what is installed: to import it takes a second."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata

from .driving import MISSING, TOO_OLD

OLDEST = "3.0"
HINT = "composesim image build --recipe"
_DISTRIBUTIONS = ("paddlepaddle", "paddlepaddle-gpu")


class Unfit(Exception):
    """Why it has none, in words, and the exit code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def require_paddle() -> None:
    """Unfit where there is none, or one that is too old."""
    if importlib.util.find_spec("paddle") is None:
        raise Unfit(MISSING, f"'{sys.executable}' on this node has no paddle")
    version = next(filter(None, map(_version, _DISTRIBUTIONS)), "")
    if version and _numbers(version) < _numbers(OLDEST):
        raise Unfit(TOO_OLD, f"paddle {version} is on this node, and {OLDEST} is the oldest that will do")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # or built from source, by another name
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
