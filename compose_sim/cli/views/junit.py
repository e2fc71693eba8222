"""Where does a report go as JUnit XML? Into a file that was asked for; that it cannot be written takes no verdict from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose_sim.cli.console import say
from compose_sim.core.report.junit import junit
from compose_sim.engine.run_folder.folder import write_file
from compose_sim.errors import SpecError


def write_junit(path: Path, report: Mapping[str, Any]) -> int:
    """Write the report; the exit code of a run that passed: 0, or that of bad usage where the file cannot be written."""
    try:
        write_file(path, junit(report))
    except OSError as error:
        say(f"Error: --junit: '{path}' cannot be written: {error.strerror}")
        return SpecError.exit_code
    return 0
