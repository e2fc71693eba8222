"""Name the commands of agents, locate the note that an agent leaves for a rank that should break, and the signal that announces it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal, get_args

from .event_log import EventLog

CommandName = Literal[  # agent/faults executes them
    "corrupt_checkpoint", "disk_full", "dump", "grace", "memory",
    "processes_full", "profile", "rank_fault", "rank_files_full", "rank_signal",
]  # fmt: skip
RankAction = Literal[  # of the command rank_fault; rank/fault_handler.py executes them
    "raise", "gpu-error", "exit", "hang", "lock-gil", "flip-bits", "gpu-slow", "debug"
]

SIGNAL = signal.SIGRTMAX - 4  # progress_page.STACKS_SIGNAL is the next one
ACTIONS: tuple[RankAction, ...] = get_args(RankAction)


def file_of(events: EventLog, process: int) -> Path:
    """Return the note for the rank with this process id."""
    return events.folder / "observations" / f"{events.node}.{process}.fault"


def taken(file: Path) -> Path:
    """Return the name of the note after the rank has taken it. Removing that file ends a fault that lasts."""
    return file.with_suffix(".taken")


def listens(process: int) -> bool:
    """Whether a process handles the signal; any other would be killed by it."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
