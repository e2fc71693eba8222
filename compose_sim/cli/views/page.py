"""Write the files of `report --html` and `report --bundle`."""

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

    return _written(path, "--html", report_page(PageReader(folder).read()), "the page of the run")


def write_bundle(path: Path, folder: RunFolder) -> int:
    """Write the bundle of a finished run, which only the user can read, and return as `write_page`."""
    from compose_sim.view.bundle import bundle

    what = "the run, without known secrets; look at its logs before you send it"
    return _written(path, "--bundle", bundle(folder), what, mode=0o600)


def _written(path: Path, option: str, content: str | bytes, what: str, *, mode: int = 0o644) -> int:
    try:
        write_file(path, content, mode=mode)
    except OSError as error:
        say(f"Error: {option}: '{path}' cannot be written: {error.strerror}")
        return SpecError.exit_code
    say(f"{what}: {path}")
    return 0
