"""Keep the clock of a run in its folder, for all processes that write events."""

from __future__ import annotations

from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.node.shared.event_log import CLOCK_FILE, RunClock


def begin_clock(files: SafeFolder) -> None:
    """Start the clock of a new run."""
    files.replace(CLOCK_FILE, str(RunClock.begin()))


def began_at(files: SafeFolder) -> float | None:
    """Return when a run began, in Unix seconds; None if it has no clock."""
    status = files.status(CLOCK_FILE)
    return round(status.st_mtime, 3) if status else None


def read_clock(files: SafeFolder) -> RunClock:
    """Return the clock of a run; a new one if the run has none."""
    try:
        return RunClock.parse(files.read_text(CLOCK_FILE))
    except (OSError, UnsafeFileError):
        return RunClock.begin()
