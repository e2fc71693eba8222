"""Read how much memory processes take."""

from __future__ import annotations

from pathlib import Path

import psutil


def resident(*words: str) -> int:
    """Return the bytes of memory that all processes have now whose command line contains all of these texts."""
    return sum(
        process.info["memory_info"].rss
        for process in psutil.process_iter(["cmdline", "memory_info"])
        if process.info["memory_info"] and all(word in " ".join(process.info["cmdline"] or ()) for word in words)
    )


def peak(process: int) -> int:
    """Return the bytes of memory that a process had at most so far, which psutil does not tell; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
