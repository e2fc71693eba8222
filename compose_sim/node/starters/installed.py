"""Check which version of a framework is installed, without importing it, which would take a second."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata

MISSING, TOO_OLD = 90, 91  # exit codes, which recipes explain


class StartError(Exception):
    """A framework cannot be started here. Holds an exit code and a command to try."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


def require(package: str, least: str, *distributions: str, hint: str) -> str:
    """
    Return the installed version of a package, or "" if it was not installed as one of these distributions.

    Raises:
        StartError: the package is missing, or older than `least`.
    """
    version = next(filter(None, map(_installed_version, distributions)), "")
    if not version and importlib.util.find_spec(package) is None:
        raise StartError(MISSING, f"{package} is not installed for {sys.executable}", hint)
    if version and _numbers(version) < _numbers(least):
        raise StartError(TOO_OLD, f"{package} {version} is too old: {least} or newer is needed", hint)
    return version


def _installed_version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers to compare versions by, without a local version (after `+`)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
