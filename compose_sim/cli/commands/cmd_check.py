"""What does `composesim check` do? It runs a script, watches its ranks from inside, and says what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from compose_sim import assets
from compose_sim.app.check import check_cluster
from compose_sim.app.program import new_name
from compose_sim.cli.cluster_command import ClusterCommand
from compose_sim.cli.commands.cmd_up import announce
from compose_sim.cli.console import print_json
from compose_sim.cli.options import Request, cluster_options, read_request
from compose_sim.cli.views.annotations import annotate
from compose_sim.cli.views.checks import print_checks
from compose_sim.cli.views.junit import write_junit
from compose_sim.cli.views.live import make_listener
from compose_sim.cli.views.report import check_verdict, print_cause
from compose_sim.core.checks import chosen
from compose_sim.core.checks.selection import check_exit_code
from compose_sim.core.request.check_ids import known_check
from compose_sim.engine.registry import make_engine
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.errors import SpecError

_HANG_TIMEOUT_S = 15.0  # a check ends at the diagnosis; `up` warns, and waits for --hang-timeout
_RANKS_ON_A_NODE = 2  # with one, LOCAL_RANK is 0 everywhere, and what confuses it with RANK goes unseen


def _explain(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Print a check's page, and leave."""
    if name is None:
        return
    page = assets.root() / "docs" / "checks" / f"{known_check(name)}.md"
    click.echo(page.read_text(encoding="utf-8"), nl=False)
    context.exit()


@click.command("check", cls=ClusterCommand)
@cluster_options
@click.option(
    "--steps", metavar="N", help="End the script after N optimizer steps; all are watched closely and replayed."
)
@click.option("--only", multiple=True, metavar="ID[,ID]", help="Run these checks only.")
@click.option("--skip", multiple=True, metavar="ID[,ID]", help="Leave these checks out.")
@click.option("--tolerance", metavar="X", help="Largest relative difference from world size 1, such as 1e-3.")
@click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write the results as JUnit XML.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout, and nothing else there.")
@click.option(
    "--explain", metavar="ID", callback=_explain, is_eager=True, expose_value=False, help="Print a check's page."
)
def command(file: Path | None, program: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Is the distributed code of SCRIPT right? Run it on 2 nodes with 2 ranks each, then at world size 1, and say what is wrong.

    What follows SCRIPT is the script's own. Exit code: 0 nothing failed (a warning is no failure), 1 a check or the run failed,
    2 bad usage, 3 inconclusive, 4 something is missing on this machine, 124 hang or timeout, 130 interrupted.
    """
    if flags["junit"]:
        flags["junit"] = str(Path.cwd() / flags["junit"])  # one that the spec file names lies beside that
    request = _with_defaults(read_request(file=file, program=program, **flags))
    _require_something_to_check(request)
    report = _run(request, as_json=as_json)
    settings = request.spec.check
    if as_json:
        print_json(report)
    else:
        click.echo()
        print_checks(report["checks"])
        print_cause(report)
        click.echo()
        click.echo(check_verdict(report))
    annotate(report, folder=request.folder, err=as_json)
    unwritten = write_junit(request.folder / settings.junit, report) if settings.junit else 0
    sys.exit(check_exit_code(report) or unwritten)


def _require_something_to_check(request: Request) -> None:
    """A job in the wrong folder, or one that leaves every check out, must not be green."""
    spec = request.spec
    if spec.recipe != "ddp":
        raise SpecError(
            f"recipe '{spec.recipe}' cannot be checked: the checks judge torch.distributed scripts",
            hint="composesim check SCRIPT, or composesim up for the exit code alone",
        )
    if not (spec.script or spec.module):
        raise SpecError(
            f"no script is named, and none in a spec file of '{request.folder}'", hint="composesim check SCRIPT"
        )
    if not chosen(spec.check.only, spec.check.skip):
        raise SpecError("every check is left out: what --only names, --skip takes away", hint="composesim check SCRIPT")


def _run(request: Request, *, as_json: bool) -> dict[str, Any]:
    run = new_name(request.spec)
    folder = RunFolder(runs_folder(request.folder) / run)
    plan, host = request.plan(run=run, run_folder=folder.path)
    if not as_json:
        announce(plan, request.remark)
    listener = make_listener(plan, quiet=as_json)
    settings = request.spec.check
    try:
        return check_cluster(
            plan,
            make_engine(plan.engine),
            folder,
            host,
            listener,
            make_plan=request.plan,
            dotenv=request.dotenv,
            replan=lambda: request.plan(run=run, run_folder=folder.path)[0],
            only=settings.only,
            skip=settings.skip,
            steps=settings.steps,
            tolerance=settings.tolerance,
        )
    finally:
        listener.close()


def _with_defaults(request: Request) -> Request:
    """What a check does where nobody says otherwise: two ranks a node, and no patience with a hang. Nothing runs beside its nodes."""
    from dataclasses import replace

    ours = {"nproc_per_node": _RANKS_ON_A_NODE, "hang_timeout": _HANG_TIMEOUT_S}
    left_out = {name: value for name, value in ours.items() if name not in request.spec.model_fields_set}
    return replace(request, spec=request.spec.model_copy(update={**left_out, "services": (), "publish": {}}))


for _option in command.params:
    if _option.name == "nproc_per_node" and isinstance(_option, click.Option):
        _option.help = f"Ranks on each node.  [default: {_RANKS_ON_A_NODE}]"  # `up` has 1
