"""Run a command inside one node or all of them, and exit with the status of the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import click

from compose_sim.cli.console import echo, line_of_node
from compose_sim.cli.run_lookup import run_option, select_live
from compose_sim.core.plan.selectors import node_name
from compose_sim.engine.protocol import Engine
from compose_sim.errors import SpecError

_AT_ONCE = 16


@click.command("exec", context_settings={"allow_interspersed_args": False})
@run_option
@click.argument("node")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def command(run: str | None, node: str, arguments: tuple[str, ...]) -> None:
    """Run a command inside NODE (node-1, 1, or all) of a running run.

    With `all`, every line of output starts with the name of the node, and the exit code is the highest.
    """
    argv = arguments[1:] if arguments[:1] == ("--",) else arguments
    if not argv:
        raise SpecError("no command was given", hint=f"composesim exec {node} -- nvidia-smi")
    engine, run, _ = select_live(run)
    statuses = engine.statuses(run)
    if node == "all":
        sys.exit(
            _execute_on_all(engine, run, [each.node for each in statuses if each.role == "node" and each.running], argv)
        )
    name = node if node == "master" else node_name(node, [status.node for status in statuses], run=run)
    if not any(status.node == name and status.running for status in statuses):
        raise SpecError(f"{name} of the run '{run}' is not running", hint="composesim ps")
    sys.exit(engine.execute(run, name, argv))


def _execute_on_all(engine: Engine, run: str, nodes: list[str], argv: Sequence[str]) -> int:
    if not nodes:
        raise SpecError(f"no node of the run '{run}' is running", hint="composesim ps")
    width = max(map(len, nodes))

    def execute(node: str) -> int:
        return engine.execute(run, node, argv, lambda line: echo(line_of_node(node, None, width, line)))

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return max(pool.map(execute, nodes))
