"""What does `composesim play` do? It runs a script, does to the run what a scenario says, and judges what the scenario expects."""

from __future__ import annotations

import os
import secrets
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from compose_sim import assets
from compose_sim.app.play import play_cluster
from compose_sim.app.program import new_name
from compose_sim.cli.cluster_command import OwnWordFirst
from compose_sim.cli.commands.cmd_up import announce
from compose_sim.cli.console import print_json, print_table, say
from compose_sim.cli.options import cluster_options, read_request
from compose_sim.cli.run_lookup import junit_option
from compose_sim.cli.views.junit import write_junit
from compose_sim.cli.views.live import make_listener
from compose_sim.cli.views.report import print_report
from compose_sim.core.scenarios.scenario import Scenario
from compose_sim.core.scenarios.scenario_file import parse_scenario
from compose_sim.engine.registry import make_engine
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.errors import SpecError


def _list(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Say which scenarios ship, and leave."""
    if not asked:
        return
    rows = [(path.stem, read_scenario(path.stem).shows) for path in _shipped()]
    print_table(("scenario", "what it shows"), rows)
    context.exit()


@click.command("play", cls=OwnWordFirst)
@click.argument("scenario", metavar="SCENARIO")
@cluster_options
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Where random choices begin.")
@click.option("--keep", is_flag=True, default=None, help="Leave nodes and network in place after the run.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout, and nothing else there.")
@click.option(
    "--list", is_flag=True, callback=_list, is_eager=True, expose_value=False, help="List the scenarios that ship."
)
@junit_option
def command(
    scenario: str,
    file: Path | None,
    program: tuple[str, ...],
    seed: int | None,
    as_json: bool,
    junit_file: Path | None,
    **flags: Any,
) -> None:
    """Play SCENARIO, a YAML file or one that ships (--list), in a run of SCRIPT, and judge what it expects.

    Exit code: 0 all that was expected came about, 1 something did not, 2 bad usage, 3 something cannot be judged,
    4 something is missing on this machine, 124 the run hung unexpectedly, 130 interrupted.
    """
    read = read_scenario(scenario)
    name = Path(scenario).stem
    request = read_request(file=file, program=program, defaults=read.cluster, **flags)
    run = new_name(request.spec)
    folder = RunFolder(runs_folder(request.folder) / run)
    plan, host = request.plan(run=run, run_folder=folder.path)
    seed = next((each for each in (seed, read.seed) if each is not None), secrets.randbelow(10**6))
    if not as_json:
        announce(plan, request.remark)
        say(f"  scenario {name}: {read.shows or f'{len(read.steps)} steps'} (seed {seed})")
    listener = make_listener(plan, quiet=as_json, folder=folder)
    engine = make_engine(plan.engine)
    try:
        report = play_cluster(
            read,
            plan,
            engine,
            folder,
            host,
            listener,
            name=name,
            seed=seed,
            dotenv=request.dotenv,
            replan=lambda: request.plan(run=run, run_folder=folder.path)[0],
        )
    finally:
        listener.close()
    if as_json:
        print_json(report)
    else:
        print_report(report, err=True, skip=request.spec.check.skip)
    unwritten = write_junit(junit_file, report) if junit_file else 0
    sys.exit(report["exit_code"] or unwritten)


def read_scenario(name: str) -> Scenario:
    """The scenario of a file, or of a name in our library; SpecError with the nearest name where there is neither."""
    path = Path(name)
    if not path.is_file():
        known = {shipped.stem: shipped for shipped in _shipped()}
        if name not in known:
            near = next(iter(get_close_matches(path.stem, known, n=1)), "")
            meant = f"; did you mean '{near}'?" if near else ""
            raise SpecError(
                f"there is no scenario '{name}', neither a file nor one that ships{meant}",
                hint="composesim play --list",
            )
        path = known[name]
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, PermissionError) as error:
        raise SpecError(f"'{path}' cannot be read: {error}", hint=f"file {path}") from None
    return parse_scenario(text, name, os.environ)


def _shipped() -> list[Path]:
    return sorted((assets.root() / "templates" / "scenarios").glob("*.yaml"))
