"""Write the JUnit file of --junit. A write failure does not change the verdict."""

from __future__ import annotations

from pathlib import Path

from compose_sim.cli.console import say
from compose_sim.core.report.junit import junit
from compose_sim.core.report.report import Report
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError


def write_junit(path: Path, report: Report) -> int:
    """Write the report and return the exit code for a run that passed: 0, or that of bad usage if the file cannot be written."""
    try:
        write_file(path, junit(report))
    except OSError as error:
        say(f"Error: --junit: '{path}' cannot be written: {error.strerror}")
        return SpecError.exit_code
    return 0
