"""State which versions of torch are tested, and compare a version with them."""

from __future__ import annotations

import re
from typing import Literal

TorchRange = Literal["tested", "older", "newer", "unknown"]

TESTED = ("2.9.1", "2.11.0", "2.13.0", "2.14.1", "2.15.0")  # what `make matrix` runs, oldest first
# Minor versions. Those between two tested ones count as tested.
OLDEST, NEWEST = (2, 9), (2, 15)
REQUIREMENT = f"torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"  # for pip
_MINOR = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?![0-9])")


def torch_range(version: str) -> TorchRange:
    """Return whether a version such as `2.15.0+cu132` or `2.16.0a0+git123` is in the tested range, by its minor version."""
    match = _MINOR.match(version)
    if match is None:
        return "unknown"
    minor = int(match[1]), int(match[2])
    if minor < OLDEST:
        return "older"
    return "newer" if minor > NEWEST else "tested"


def range_words(version: str) -> str:
    """Return what a version is: `in the tested range 2.9 to 2.15`, or `newer than the newest tested version, 2.15`."""
    oldest, newest = (f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    return {
        "tested": f"in the tested range {oldest} to {newest}",
        "older": f"older than the oldest tested version, {oldest}",
        "newer": f"newer than the newest tested version, {newest}",
        "unknown": f"of unknown version; {oldest} to {newest} are tested",
    }[torch_range(version)]
