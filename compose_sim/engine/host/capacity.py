"""Find out how many processes, how much memory, how many neighbors and how much on a disk this machine has room for."""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

_PLENTY = 10_000  # more processes and threads than any run of one machine needs
_GROUPS = Path("/sys/fs/cgroup")
# Of each resource: what a control group may have and what it has, by the versions 2 and 1 of control groups.
_GROUP_FILES = {
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
    "memory": (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}


def free_process_ids() -> int | None:
    """Return how many processes and threads may still start; None if the kernel does not show it."""
    try:
        most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    except (OSError, ValueError):
        return None
    running = _running_threads()
    return None if running is None else max(0, most - running)


def own_free_process_ids() -> int | None:
    """Return how many processes and threads the caller may still start by its user's limit and its control groups; None without one."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    groups = _left_in_groups("pids")
    if os.getuid() == 0 or most == resource.RLIM_INFINITY:  # the limit does not bind root
        return groups
    running = _running_threads()
    if running is None or most - running < _PLENTY:
        running = _own_threads()
    left = max(0, most - running)
    return left if groups is None else min(left, groups)


def own_free_memory() -> int | None:
    """Return the bytes that the control groups of this process leave it; None if there is no limit."""
    return _left_in_groups("memory")


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


def _running_threads() -> int | None:
    """Return how many threads all users run (proc_loadavg(5)); None if the kernel does not show it."""
    found = re.search(r"/(\d+) ", _text(Path("/proc/loadavg")))
    return int(found[1]) if found else None


def _own_threads() -> int:
    import psutil  # takes 30 ms

    mine = [each for each in psutil.process_iter(["num_threads", "uids"]) if each.info["uids"]]
    return sum(each.info["num_threads"] or 0 for each in mine if each.info["uids"].real == os.getuid())


def _left_in_groups(kind: str) -> int | None:
    """Return what the strictest control group above this process leaves of a resource (cgroups(7)); None without a limit."""
    left = []
    for group, (most, used) in _own_groups(kind):
        try:
            cache = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(group / f"{kind}.stat"), re.MULTILINE)
            has = int(_text(group / used)) - int(cache[1] if cache else 0)  # the kernel gives up what it only caches
            left.append(int(_text(group / most)) - has)
        except ValueError:  # "max", or there are no such files: a container may see its own group as the root
            continue
    return max(0, min(left)) if left else None


def _own_groups(kind: str) -> Iterator[tuple[Path, tuple[str, str]]]:
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and kind not in controllers.split(","):
            continue
        root = _GROUPS / kind if controllers else _GROUPS  # version 1 has a tree for each controller
        below = Path(path).relative_to("/")
        for group in (below, *below.parents):
            yield root / group, _GROUP_FILES[kind][bool(controllers)]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
