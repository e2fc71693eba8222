"""Run a script, observe the ranks from inside, and report what is wrong with the distributed code."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from compose_sim import assets
from compose_sim.app.check import DEFAULTS, check, check_request
from compose_sim.app.session import Session
from compose_sim.cli.cluster_command import ClusterCommand
from compose_sim.cli.console import echo_workflow_command, in_github_job, print_json, print_page, say
from compose_sim.cli.options import check_options, request_from_flags
from compose_sim.cli.run_lookup import FILE
from compose_sim.cli.run_session import run_session
from compose_sim.cli.views.page import view_option, write_junit, write_page
from compose_sim.cli.views.report import (
    print_judgement,
    relative,
    unjudged_text,
    verdict_text,
)
from compose_sim.core.checks.run import find_check
from compose_sim.core.report.ci import summary, workflow_commands
from compose_sim.core.report.report import Report
from compose_sim.core.request.names import known_check
from compose_sim.engine.host.process_start import seconds_since_start


def _explain(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Print the page of a check, and exit."""
    if name is None:
        return
    docs = assets.root() / "docs"
    pages = [docs / "checks" / f"{known_check(name)}.md", docs / "plugins" / name / f"{name}.md"]
    page = next((each for each in pages if each.is_file()), None)
    print_page(page.read_text(encoding="utf-8") if page else find_check(name).page)
    context.exit()


@click.command("check", cls=ClusterCommand)
@check_options(DEFAULTS)
@click.option("--json", "as_json", is_flag=True, help="Print only the report, as JSON, on stdout.")
@click.option("--html", "html_file", type=FILE, help="Write the page of the run.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print the results of all checks, as with --only, and not only the problems."
)
@click.option(
    "--explain", metavar="ID", callback=_explain, is_eager=True, expose_value=False, help="Print a check's page."
)
@view_option
def command(
    file: Path | None,
    program: tuple[str, ...],
    as_json: bool,
    html_file: Path | None,
    verbose: bool,
    view: bool,
    **flags: Any,
) -> None:
    """Check the distributed code of SCRIPT: run it as `up` does, then at world size 1, and report what is wrong.

    Arguments after SCRIPT are passed to the script. Exit code: 0 nothing failed (warnings do not count), 1 a check or the run failed,
    2 bad usage, 3 inconclusive, 4 something is missing on this machine, 124 hang or timeout, 130 interrupted.
    """
    if flags["junit"]:
        flags["junit"] = str(Path.cwd() / flags["junit"])  # a path in the spec file is relative to that file
    session = Session(check_request(request_from_flags(file=file, program=program, **flags)))
    report, page = run_session(session, partial(check, session), quiet=as_json, view=view)
    if as_json:
        print_json(report.to_dict())
    else:
        is_verbose = verbose or bool(session.request.spec.check.only)
        print_judgement(report, verbose=is_verbose, seconds=seconds_since_start())
    folder, junit = session.request.folder, session.request.spec.check.junit
    _annotate(report, folder=folder, err=as_json)
    unwritten = write_junit(folder / junit, report) if junit else 0
    unwritten = (write_page(html_file, session.folder) if html_file else 0) or unwritten
    if page and not session.was_interrupted:
        page.hold()
    sys.exit(report.check_exit_code or unwritten)


def _annotate(report: Report, *, folder: Path, err: bool) -> None:
    """Annotate the lines of code that a check complains about, if a GitHub Actions job runs composesim.

    Print annotations on stdout or stderr (GitHub reads both), and add a table to the summary of the step.
    """
    if not in_github_job():
        return
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or folder)
    for command in workflow_commands(report, path_of=lambda file: relative(folder / file, workspace)):
        echo_workflow_command(command, err=err)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        try:
            with Path(target).open("a", encoding="utf-8") as file:
                verdict = "; ".join(filter(None, (unjudged_text(report), verdict_text(report))))
                file.write(summary(report, verdict) + "\n")
        except OSError as error:
            say(f"the step summary '{target}' cannot be written: {error.strerror}")
