"""Identify the machine and the versions that figures belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe() -> dict[str, str]:
    """Return what must be equal for two rows of the same table."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "engine": _ask("docker", "version", "--format", "{{.Server.Version}}"),
        "compose": _ask("docker", "compose", "version", "--short"),
        "torch": _version("torch"),
        "python": platform.python_version(),
    }


def commit() -> str:
    """Return the commit that was measured, with a `+` if files differ from it."""
    changed = _ask("git", "status", "--porcelain", "--untracked-files=no")
    return _ask("git", "rev-parse", "--short", "HEAD") + ("" if changed in ("", "none") else "+")


def busy_cores() -> float:
    """Return how many cores other processes use, over one second; the load average would still include the previous row."""
    before = _cpu_ticks()
    time.sleep(1)  # the length of the sample, not a wait for anything
    idle, total = (later - earlier for later, earlier in zip(_cpu_ticks(), before, strict=True))
    return (os.cpu_count() or 1) * (1 - idle / max(1, total))


def _cpu_ticks() -> tuple[int, int]:
    """Return (idle, all), summed over the cores."""
    ticks = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _ask(*command: str) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    except FileNotFoundError:
        return "none"
    return answer.stdout.strip() if answer.returncode == 0 else "none"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
