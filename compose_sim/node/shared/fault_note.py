"""Name the note that the agent leaves for a rank that is to fail, and the signal that announces it."""

from __future__ import annotations

import signal
from pathlib import Path

from .event_log import EventLog

SIGNAL = signal.SIGRTMAX - 4  # progress_page.STACKS_SIGNAL is the one above
ACTS = ("raise", "exit", "hang", "lock-gil")  # rank/fault_handler.py does them


def file_of(events: EventLog, process: int) -> Path:
    """The note for the rank with this process id."""
    return events.folder / "observations" / f"{events.node}.{process}.fault"


def taken(file: Path) -> Path:
    """The same note once the rank has taken it; a fault that lasts is over when this file has gone."""
    return file.with_suffix(".taken")


def listens(process: int) -> bool:
    """Whether a process has a handler for the signal, which would end any other."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
