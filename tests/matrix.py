"""Read tests/matrix.txt and those of plug-ins, the lists of the tests that `make matrix` runs with other versions of torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

LISTS = [Path(__file__).with_name("matrix.txt"), *sorted(Path(__file__).parent.glob("plugins/*/matrix.txt"))]


@cache
def entries() -> tuple[str, ...]:
    """Return the ids of tests, and files or functions that stand for all of their tests."""
    lines = [line.strip() for path in LISTS for line in path.read_text().splitlines()]
    return tuple(line for line in lines if line and not line.startswith("#"))


def files() -> list[str]:
    """Return the files that contain the listed tests."""
    return list(dict.fromkeys(entry.partition("::")[0] for entry in entries()))


def entry_of(test: str) -> str | None:
    """Return the entry that lists a test, if any does: its id, its function or its file."""
    return next((name for name in (test, test.partition("[")[0], test.partition("::")[0]) if name in entries()), None)
