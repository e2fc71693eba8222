"""Write the HTML file of `report --html`."""

from __future__ import annotations

from pathlib import Path

from compose_sim.cli.console import say
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError


def write_page(path: Path, folder: RunFolder) -> int:
    """Write the page of a finished run, and return 0, or the exit code of bad usage if the file cannot be written."""
    from compose_sim.view.document import report_page
    from compose_sim.view.reader import PageReader

    page = report_page(PageReader(folder).read())
    try:
        write_file(path, page)
    except OSError as error:
        say(f"Error: --html: '{path}' cannot be written: {error.strerror}")
        return SpecError.exit_code
    say(f"the page of the run: {path}")
    return 0
