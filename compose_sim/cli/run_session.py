"""Announce a session, run it with the live view, and report how it ended: what `up`, `check` and `play` share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from compose_sim.app.listener import Listener
from compose_sim.app.session import Session
from compose_sim.cli.console import print_json, say
from compose_sim.cli.views.live import listening
from compose_sim.cli.views.page import LivePage, write_junit
from compose_sim.core.compose.names import container_name
from compose_sim.core.text import format_count

if TYPE_CHECKING:
    from compose_sim.core.report.report import Report


def run_session(
    session: Session, run: Callable[[Listener], Report], *, quiet: bool, remark: str = "", view: bool = False
) -> tuple[Report, LivePage | None]:
    """
    Print what is about to run, unless `quiet`, and call `run` with a listener for this terminal.

    Return the report, and the page if `view`.
    """
    if not quiet:
        announce(session, remark)
    page = LivePage(session.folder) if view else None
    with listening(session.plan, quiet=quiet, folder=session.folder) as listener:
        return run(listener), page


def announce(session: Session, remark: str = "") -> None:
    """Print what is about to run, and why it runs this way."""
    plan = session.plan
    nodes, ranks = format_count(len(plan.nodes), "node"), format_count(plan.world_size, "rank")
    say(f"run {plan.run}: {nodes}, {ranks} of {plan.program}")
    for choice in plan.choices:
        say(f"  {choice.what} {choice.value}: {choice.why}")
    if plan.links:
        say(f"  links {', '.join(plan.links)}")
    job = session.request.job_file
    for text in filter(None, (*session.request.remarks, *(job.remarks if job else ()), remark)):
        say(f"  {text}")


def exit_with_report(
    session: Session, report: Report, *, as_json: bool, junit: Path | None, page: LivePage | None = None
) -> NoReturn:
    """Print the report of a run, write it as JUnit XML if a file was named, hold its page, and exit with the run's exit code."""
    if as_json:
        print_json(report.to_dict())
    else:
        from compose_sim.cli.views.report import print_report

        print_report(report, err=True, skip=session.request.spec.check.skip)
        if session.plan.keep and session.plan.engine == "docker":
            container = container_name(session.name, session.plan.nodes[0].name)
            say(f"The nodes have stopped and are kept: docker diff {container}; docker cp {container}:/tmp node-tmp")
            say(f"Remove them: composesim down --run {session.name}")
    unwritten = write_junit(junit, report) if junit else 0
    if page and not session.was_interrupted:
        page.hold()
    sys.exit(report.exit_code or unwritten)
