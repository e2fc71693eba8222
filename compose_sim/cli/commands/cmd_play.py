"""Run a script, inject the faults of a scenario, and judge what the scenario expects."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import click

from compose_sim.app.play import play, read_scenario, shipped_scenarios
from compose_sim.app.session import Session
from compose_sim.cli.cluster_command import OwnWordFirst
from compose_sim.cli.console import print_table
from compose_sim.cli.options import cluster_options, keep_option, request_from_flags
from compose_sim.cli.run_lookup import junit_option
from compose_sim.cli.run_session import exit_with_report, run_session
from compose_sim.cli.views.page import view_option
from compose_sim.core.text import format_count


def _list(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """List the scenarios that ship, and exit."""
    if not asked:
        return
    rows = [(path.stem, read_scenario(path.stem).shows) for path in shipped_scenarios()]
    print_table(("scenario", "what it shows"), rows)
    context.exit()


@click.command("play", cls=OwnWordFirst)
@click.argument("scenario", metavar="SCENARIO")
@cluster_options
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the random choices.")
@keep_option
@click.option("--json", "as_json", is_flag=True, help="Print only the report, as JSON, on stdout.")
@click.option(
    "--list", is_flag=True, callback=_list, is_eager=True, expose_value=False, help="List the built-in scenarios."
)
@junit_option
@view_option
def command(
    scenario: str,
    file: Path | None,
    program: tuple[str, ...],
    seed: int | None,
    as_json: bool,
    junit_file: Path | None,
    view: bool,
    **flags: Any,
) -> None:
    """Play SCENARIO, a YAML file or one that ships (--list), in a run of SCRIPT, and judge what it expects.

    Exit code: 0 all expectations were met, 1 one was not, 2 bad usage, 3 one cannot be judged,
    4 something is missing on this machine, 124 the run hung unexpectedly, 130 interrupted.
    """
    read = read_scenario(scenario)
    name = Path(scenario).stem
    seed = next((each for each in (seed, read.seed) if each is not None), secrets.randbelow(10**6))
    session = Session(request_from_flags(file=file, program=program, defaults=read.cluster, **flags))
    report, page = run_session(
        session,
        lambda listener: play(session, read, listener, name=name, seed=seed),
        quiet=as_json,
        view=view,
        remark=f"scenario {name}: {read.shows or format_count(len(read.steps), 'step')} (seed {seed})",
    )
    exit_with_report(session, report, as_json=as_json, junit=junit_file, page=page)
