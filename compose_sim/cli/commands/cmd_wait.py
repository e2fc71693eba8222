"""Wait until a run has ended, and exit with the same exit code."""

from __future__ import annotations

import sys

import click

from compose_sim.cli.console import print_json, say
from compose_sim.cli.run_lookup import json_option, run_option, seconds, select_folder
from compose_sim.cli.views.report import final_line
from compose_sim.core.units import format_seconds
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.engine.run_folder.record import report_of

TIMED_OUT = 124


@click.command("wait")
@run_option
@click.option(
    "--timeout", callback=seconds, metavar="TIME", help="Give up with exit code 124 after this time, such as 10m."
)
@json_option
def command(run: str | None, timeout: float | None, as_json: bool) -> None:
    """Wait for a run to finish and exit with its exit code. Returns immediately if the run is already over."""
    folder = select_folder(run)
    if not end_of(folder).wait(timeout):
        say(f"the run '{folder.name}' is still running after {format_seconds(timeout or 0)}")
        sys.exit(TIMED_OUT)
    report = report_of(folder)
    if as_json:
        print_json(report.to_dict())
    else:
        say(final_line(report))
    sys.exit(report.exit_code)
