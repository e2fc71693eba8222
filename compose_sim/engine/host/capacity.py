"""Find out how many processes, how much memory, how many neighbors and how much on a disk this machine has room for."""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def free_process_ids() -> int | None:
    """Return how many processes and threads may still start; None if the kernel does not show it."""
    try:
        most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return None
    return max(0, most - running)


def most_neighbors() -> int | None:
    """Return how many neighbors the kernel keeps for all networks together (arp(7)); None in a container, which cannot see it."""
    try:
        return int(Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3").read_text())
    except (OSError, ValueError):
        return None


def available_memory() -> int | None:
    """Return the bytes that new processes can use; None if the kernel does not show it."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def free_disk(folder: Path) -> int | None:
    """Return the bytes that may be written to a folder, which need not exist; None if that cannot be seen."""
    for path in (folder, *folder.parents):
        try:
            return shutil.disk_usage(path).free
        except OSError:  # there is none yet, or this user may not enter it
            continue
    return None
