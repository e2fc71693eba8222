"""Show the report of a finished run, even after a crash."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compose_sim.cli.console import print_json
from compose_sim.cli.run_lookup import json_option, junit_option, run_option, select_folder
from compose_sim.cli.views.junit import write_junit
from compose_sim.cli.views.report import print_report
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import report_of
from compose_sim.errors import SpecError


@click.command("report")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@json_option
@junit_option
def command(name: str | None, run: str | None, as_json: bool, junit_file: Path | None) -> None:
    """Show the report of RUN, a name or the folder of a run (default: the latest run of this project)."""
    folder = _folder(name or run)
    if folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is still running", hint=f"composesim wait --run {folder.name}")
    report = report_of(folder)
    if as_json:
        print_json(report.to_dict())
    else:
        print_report(report)
    sys.exit(write_junit(junit_file, report) if junit_file else 0)


def _folder(named: str | None) -> RunFolder:
    if named and "/" in named:
        return RunFolder(Path(named).resolve())
    return select_folder(named)
