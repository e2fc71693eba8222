"""Run a command inside a node, and exit with the status of the command."""

from __future__ import annotations

import sys

import click

from compose_sim.cli.run_lookup import run_option, select_live
from compose_sim.core.plan.selectors import node_name
from compose_sim.errors import SpecError


@click.command("exec", context_settings={"allow_interspersed_args": False})
@run_option
@click.argument("node")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def command(run: str | None, node: str, arguments: tuple[str, ...]) -> None:
    """Run a command inside NODE (node-1, or 1) of a running run."""
    argv = arguments[1:] if arguments[:1] == ("--",) else arguments
    if not argv:
        raise SpecError("no command was given", hint=f"composesim exec {node} -- nvidia-smi")
    engine, run, _ = select_live(run)
    statuses = engine.statuses(run)
    name = node if node == "master" else node_name(node, [status.node for status in statuses], run=run)
    if not any(status.node == name and status.running for status in statuses):
        raise SpecError(f"{name} of the run '{run}' is not running", hint="composesim ps")
    sys.exit(engine.execute(run, name, argv))
