"""Run a script on a cluster, and exit with the verdict of the run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from compose_sim.app.detach import continue_in_background
from compose_sim.app.request import PROJECT_FILE, SPEC_FILE
from compose_sim.app.session import Session
from compose_sim.cli.cluster_command import ClusterCommand
from compose_sim.cli.console import echo, print_json, print_table, say
from compose_sim.cli.options import cluster_options, keep_option, request_from_flags
from compose_sim.cli.run_lookup import junit_option
from compose_sim.cli.run_session import announce, exit_with_report, run_session
from compose_sim.cli.views.live import DetachedListener
from compose_sim.cli.views.page import LivePage, view_option
from compose_sim.cli.views.report import links_of, published_by
from compose_sim.engine.lifetime.watch import run_at_each_change


@click.command("up", cls=ClusterCommand)
@cluster_options
@keep_option
@click.option("--detach", is_flag=True, help="Return once the nodes are running. Continue with logs, wait and down.")
@click.option(
    "--watch", is_flag=True, help="Run again each time a .py file, or a file named on the command line, changes."
)
@click.option("--json", "as_json", is_flag=True, help="Print only the report, as JSON, on stdout.")
@junit_option
@click.option("--profile-phases", is_flag=True, help="Print how long each phase took, from the start of the command.")
@view_option
def command(
    file: Path | None,
    program: tuple[str, ...],
    detach: bool,
    watch: bool,
    as_json: bool,
    junit_file: Path | None,
    profile_phases: bool,
    view: bool,
    **flags: Any,
) -> None:
    """Run SCRIPT (default: the recipe's example) on every rank of a cluster, and exit with its verdict.

    Arguments after SCRIPT are passed to the script. Exit code: 0 passed, 1 the run failed, 2 bad usage, 3 inconclusive,
    4 something is missing on this machine, 124 hang or timeout, 130 interrupted. The run continues if its output is closed (`| head`).
    """
    request = request_from_flags(file=file, program=program, **flags)
    if watch:
        _run_at_each_change(request.folder)
    session = Session(request)
    if detach:
        _run_detached(session, as_json=as_json, junit=junit_file, view=view)
    report, page = run_session(session, session.run, quiet=as_json, view=view)
    try:
        exit_with_report(session, report, as_json=as_json, junit=junit_file, page=page)
    finally:
        if profile_phases:
            _print_phases(session)


def _run_at_each_change(folder: Path) -> NoReturn:
    """Run this command without --watch, again and again, and exit with the last exit code."""
    words = sys.argv[1:]
    words.remove("--watch")
    named = [word for word in words if Path(word).is_file()]
    files = [*map(os.path.abspath, named), SPEC_FILE, PROJECT_FILE, ".env"]
    sys.exit(run_at_each_change([sys.executable, "-P", "-m", "compose_sim", *words], folder, files=files, tell=say))


def _run_detached(session: Session, *, as_json: bool, junit: Path | None, view: bool) -> NoReturn:
    """Continue in a new process, and exit in this one when all nodes have started."""
    arrived = continue_in_background(session.folder.files, "composesim.log")

    def announce_arrival() -> None:
        if as_json:
            named = {"schema_version": 1, "run": session.name, "folder": str(session.folder.path)}
            print_json({**named, "published": published_by(session.folder)})
        else:
            echo(session.name)
            for line in links_of(session.folder):
                say(line)
            say(f"Running in the background. Follow it: composesim logs -f --run {session.name}")
            say(f"Stop it: composesim down --run {session.name}")
        arrived()

    if not as_json:
        announce(session)
    page = LivePage(session.folder) if view else None
    report = session.run(DetachedListener(announce_arrival))
    exit_with_report(session, report, as_json=False, junit=junit, page=page)


def _print_phases(session: Session) -> None:
    """Print a row for each phase of a session that has ended."""
    from compose_sim.core.state.progress import phases_of
    from compose_sim.engine.host.process_start import seconds_since_start
    from compose_sim.engine.run_folder.record import read_events  # with all checks

    age, ahead = seconds_since_start(), session.folder.clock.ahead
    session.mark("last clean-up")
    now = session.marks["last clean-up"]
    marks = {phase: at + ahead for phase, at in session.marks.items()}
    phases = phases_of(now - age + ahead, marks, read_events(session.folder.path))
    say("")
    rows = [[phase.name, f"{phase.seconds:.2f} s", f"{phase.ended_at:.2f} s"] for phase in phases]
    print_table(["phase", "took", "ended at"], rows, err=True)
