"""Check that composesim does not need more and more memory while a run prints for an hour."""

from __future__ import annotations

import subprocess
from contextlib import suppress

from bench.memory import peak, resident
from bench.soak.setting import Row, Soak

LINES, NODES, SECONDS = 300_000, 4, 3600
_MOST, _MIB = 200 << 20, 1 << 20
_NOTE_S = 600


def measure(soak: Soak) -> Row:
    """Look at the peak each second; a soak of less than an hour shows what it saw, and does not reach the goal."""
    seconds = min(SECONDS, 60 * soak.minutes)
    name = soak.new_name()
    words = ["--env", f"STREAM_LINES={LINES}", "--env", f"STREAM_S={seconds}", "stream.py"]
    process = soak.start(name, "--nodes", str(NODES), *words)
    ours, masters = [], []
    while process.poll() is None:
        if len(ours) % _NOTE_S == 0:
            masters.append(resident("node/__main__.py master", f"--nodes {NODES}"))
        ours.append(peak(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
    shown = sum(1 for line in (soak.folder / f"{name}.out").open() if " line " in line)
    most = max(ours, default=0)
    return Row(
        what=f"memory of composesim while {NODES} nodes print {LINES:,} lines each in an hour",
        wanted="below 200 MiB",
        seen=f"at most {most / _MIB:.0f} MiB, {shown:,} lines shown in {seconds / 60:.0f} min",
        reached=process.returncode == 0 and seconds == SECONDS and 0 < most < _MOST and shown == NODES * LINES,
        notes=[
            "composesim, MiB so far, every ten minutes: " + ", ".join(f"{each / _MIB:.0f}" for each in ours[::_NOTE_S]),
            "the master, MiB then: " + ", ".join(f"{each / _MIB:.0f}" for each in masters),
        ],
    )
