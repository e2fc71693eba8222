"""Show what each node uses, as measured by the node itself."""

from __future__ import annotations

from itertools import chain

import click

from compose_sim.cli.console import print_json, print_table
from compose_sim.cli.run_lookup import json_option, run_option, select_folder
from compose_sim.core.report.usage_table import usage_table, usage_values
from compose_sim.core.state.fold import fold_events
from compose_sim.core.state.state import ClusterState, initial_state
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import read_state

_BETWEEN_LOOKS_S = 1.0  # nodes measure once a second


@click.command("stats")
@run_option
@click.option("--watch", is_flag=True, help="Refresh every second until the run ends.")
@json_option
def command(run: str | None, watch: bool, as_json: bool) -> None:
    """Show the CPU, memory, network and GPU usage of each node, now or at the end of a finished run."""
    folder = select_folder(run)
    if watch:
        _watch(folder, as_json=as_json)
    else:
        _, state = read_state(folder, metrics=False)
        _print(folder, state, as_json=as_json)


def _watch(folder: RunFolder, *, as_json: bool) -> None:
    plan = folder.read_plan()
    state, tail = initial_state(plan), EventTail(folder.path, plan, logs=False)
    over, last = end_of(folder), False
    while not last:
        last = over.wait(_BETWEEN_LOOKS_S) if state.last_t else over.is_set()
        state = fold_events(state, chain.from_iterable(tail.finish() if last else [tail.poll()]))
        if not as_json:
            click.clear()  # does nothing if stdout is not a terminal
        _print(folder, state, as_json=as_json)
    tail.close()


def _print(folder: RunFolder, state: ClusterState, *, as_json: bool) -> None:
    if as_json:
        print_json({"schema_version": 1, "run": folder.name, "t": state.last_t, "nodes": usage_values(state)})
    else:
        print_table(*usage_table(state))
