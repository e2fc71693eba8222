"""What does `composesim up` do? It runs a script on a cluster, to a verdict and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from compose_sim.app.detach import continue_in_background
from compose_sim.app.program import new_name
from compose_sim.app.run import Listener, run_cluster
from compose_sim.cli.cluster_command import ClusterCommand
from compose_sim.cli.console import print_json, say
from compose_sim.cli.options import cluster_options, read_request
from compose_sim.cli.run_lookup import junit_option
from compose_sim.cli.views.junit import write_junit
from compose_sim.cli.views.live import DetachedListener, make_listener
from compose_sim.cli.views.report import print_report
from compose_sim.cli.views.service_links import links_of, values_of
from compose_sim.core.plan.model import Plan
from compose_sim.engine.registry import make_engine
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder


@click.command("up", cls=ClusterCommand)
@cluster_options
@click.option("--keep", is_flag=True, default=None, help="Leave nodes and network in place after the run.")
@click.option("--detach", is_flag=True, help="Return once the nodes run; see logs, wait, down.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout, and nothing else there.")
@junit_option
def command(
    file: Path | None, program: tuple[str, ...], detach: bool, as_json: bool, junit_file: Path | None, **flags: Any
) -> None:
    """Run SCRIPT (the recipe's example when left out) on every rank of a cluster, and end with a verdict.

    What follows SCRIPT is the script's own. Exit code: 0 passed, 1 the run failed, 2 bad usage, 3 inconclusive,
    4 something is missing on this machine, 124 hang or timeout, 130 interrupted.
    """
    request = read_request(file=file, program=program, **flags)
    run = new_name(request.spec)
    folder = RunFolder(runs_folder(request.folder) / run)
    plan, host = request.plan(run=run, run_folder=folder.path)
    if not as_json:
        announce(plan, request.remark)
    engine = make_engine(plan.engine)
    listener = _detached(folder, as_json=as_json) if detach else make_listener(plan, quiet=as_json, folder=folder)
    try:
        report = run_cluster(
            plan,
            engine,
            folder,
            host,
            listener,
            dotenv=request.dotenv,
            replan=lambda: request.plan(run=run, run_folder=folder.path)[0],
        )
    finally:
        listener.close()
    if as_json and not detach:
        print_json(report)
    elif not as_json:
        print_report(report, err=True, skip=request.spec.check.skip)
    unwritten = write_junit(junit_file, report) if junit_file else 0
    sys.exit(report["exit_code"] or unwritten)


def _detached(folder: RunFolder, *, as_json: bool) -> Listener:
    arrived = continue_in_background(folder.path / "composesim.log")

    def announce() -> None:
        if as_json:
            named = {"schema_version": 1, "run": folder.name, "folder": str(folder.path)}
            print_json({**named, "published": values_of(folder)})
        else:
            click.echo(folder.name)
            for line in links_of(folder):
                say(line)
            say(f"It goes on in the background: composesim logs -f --run {folder.name}, wait, down")
        arrived()

    return DetachedListener(announce)


def announce(plan: Plan, remark: str = "") -> None:
    """What is about to run, and why so."""
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    nodes = "1 node" if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes"
    say(f"run {plan.run}: {nodes}, {ranks} of {plan.program}")
    for choice in plan.choices:
        say(f"  {choice.what} {choice.value}: {choice.why}")
    if plan.links:
        say(f"  links {', '.join(plan.links)}")
    if remark:
        say(f"  {remark}")
