"""Read how much memory processes take, from /proc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def resident(process: int, *, peak: bool = False) -> int:
    """Return the bytes of memory that a process has now, or had at most; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == ("VmHWM" if peak else "VmRSS"):
                return int(value.split()[0]) * 1024
    return 0


def processes_with(*words: str) -> Iterator[int]:
    """Yield the processes whose command line, its words joined by spaces, contains all of these texts."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if all(word in command for word in words):
                yield int(path.parent.name)
