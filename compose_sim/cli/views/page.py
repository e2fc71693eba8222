"""Write the files of `--html`, `--bundle` and `--junit`, and serve the page of `--view` beside a run."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import click

from compose_sim.cli.console import is_terminal, say
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError

if TYPE_CHECKING:
    from compose_sim.core.report.report import Report

_LAST_MESSAGE_WITHIN_S = 3.0

view_option = click.option(
    "--view", is_flag=True, help="Serve the page of the run while it runs, and print the address."
)


class LivePage:
    """The page of a run that this process runs. It ends with the process."""

    def __init__(self, folder: RunFolder) -> None:
        """Serve it in a thread, and print the address."""
        from compose_sim.view.server import ViewServer

        self._server = ViewServer(folder)
        self._run, self._address = folder.name, self._server.address
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        say(f"page: {self._address}")

    def hold(self) -> None:
        """Keep the page of a run that is over until Ctrl-C, on a terminal; elsewhere until its readers know of the end."""
        if is_terminal() and sys.stdin.isatty():
            say(f"The page stays open until Ctrl-C: {self._address}")
            with suppress(KeyboardInterrupt):
                self._thread.join()
        else:
            self._server.wait_for_readers(_LAST_MESSAGE_WITHIN_S)
            say(f"The page is closed. Open it again: composesim view {self._run}")


def write_page(path: Path, folder: RunFolder, *, against: RunFolder | None = None) -> int:
    """Write the page of a finished run, and return 0, or the exit code of bad usage if the file cannot be written."""
    from compose_sim.view.bundle import report_page
    from compose_sim.view.reader import PageReader

    page = report_page(PageReader(folder).read(), against=PageReader(against).read() if against else None)
    return _written(path, "--html", page, "the page of the run")


def write_junit(path: Path, report: Report) -> int:
    """Write a report as JUnit XML, and return as `write_page`."""
    from compose_sim.core.report.ci import junit

    return _written(path, "--junit", junit(report))


def write_bundle(path: Path, folder: RunFolder) -> int:
    """Write the bundle of a finished run, which only the user can read, and return as `write_page`."""
    from compose_sim.view.bundle import bundle

    what = "the run, without known secrets; look at its logs before you send it"
    return _written(path, "--bundle", bundle(folder), what, mode=0o600)


def _written(path: Path, option: str, content: str | bytes, what: str = "", *, mode: int = 0o644) -> int:
    try:
        write_file(path, content, mode=mode)
    except OSError as error:
        say(f"Error: {option}: '{path}' cannot be written: {error.strerror}")
        return SpecError.exit_code
    if what:
        say(f"{what}: {path}")
    return 0
