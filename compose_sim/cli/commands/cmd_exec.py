"""What does `composesim exec` do? It runs a command inside a node, and ends with that command's status."""

from __future__ import annotations

import sys

import click

from compose_sim.cli.run_lookup import run_option, select_live
from compose_sim.core.plan.selectors import node_name
from compose_sim.errors import SpecError


@click.command("exec", context_settings={"allow_interspersed_args": False})
@run_option
@click.argument("node")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def command(run: str | None, node: str, words: tuple[str, ...]) -> None:
    """Run a command inside NODE (node-1, or 1) of a run that is under way."""
    argv = words[1:] if words[:1] == ("--",) else words
    if not argv:
        raise SpecError("there is no command to run", hint=f"composesim exec {node} -- nvidia-smi")
    engine, run, _ = select_live(run)
    statuses = engine.statuses(run)
    name = node if node == "master" else node_name(node, [status.node for status in statuses], run=run)
    if not any(status.node == name and status.running for status in statuses):
        raise SpecError(f"{name} of the run '{run}' is not running", hint="composesim ps")
    sys.exit(engine.execute(run, name, argv))
