"""Does this Python have a framework that will do? Told from what is installed: to import one takes a second."""

from __future__ import annotations

import re
from importlib import metadata


class Unfit(Exception):
    """Why it has none, in words, and the exit code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def version_of(*distributions: str) -> str:
    """The version of the first of these that is installed; "" where none is."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def is_older(version: str, least: str) -> bool:
    """Whether a version comes before another one; what stands behind a `+` is of its build."""
    return _numbers(version) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
