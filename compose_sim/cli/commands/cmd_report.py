"""Show the report of a finished run, even after a crash."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from compose_sim.cli.console import print_json
from compose_sim.cli.run_lookup import FILE, json_option, junit_option, named_folder, run_option
from compose_sim.cli.views.page import write_bundle, write_junit, write_page
from compose_sim.cli.views.report import print_report
from compose_sim.engine.run_folder.record import report_of
from compose_sim.errors import SpecError

_HTML = "Write a page with the timeline, metrics, checks and logs: one file that opens from disk."
_BUNDLE = "Write a ZIP file for a ticket: report, page, events, logs, stacks and plan, without secrets."


@click.command("report")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@json_option
@junit_option
@click.option("--html", "html_file", type=FILE, help=_HTML)
@click.option("--bundle", "bundle_file", type=FILE, help=_BUNDLE)
def command(
    name: str | None,
    run: str | None,
    as_json: bool,
    junit_file: Path | None,
    html_file: Path | None,
    bundle_file: Path | None,
) -> None:
    """Show the report of RUN, a name or the folder of a run (default: the latest run of this project)."""
    folder = named_folder(name or run)
    if folder.is_claimed():
        # A lock that cannot be opened, such as another user's, does not tell whether the run is over: SpecError says why.
        os.close(folder.open_lock())
        raise SpecError(f"the run '{folder.name}' is still running", hint=f"composesim wait --run {folder.name}")
    report = report_of(folder)
    if as_json:
        print_json(report.to_dict())
    else:
        print_report(report)
    unwritten = write_junit(junit_file, report) if junit_file else 0
    unwritten = (write_page(html_file, folder) if html_file else 0) or unwritten
    sys.exit((write_bundle(bundle_file, folder) if bundle_file else 0) or unwritten)
