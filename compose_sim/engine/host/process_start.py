"""Find out how old this process is."""

from __future__ import annotations

import os
import time
from pathlib import Path

_START_TIME = 19  # the index in /proc/PID/stat after the name of the process; in clock ticks since the machine started


def seconds_since_start() -> float:
    """Return the age of this process in seconds, exact to a clock tick; without /proc, how long it has used a CPU."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
