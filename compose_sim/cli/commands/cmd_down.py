"""What does `composesim down` do? It ends runs and leaves nothing of them but their folders; with --purge not even those."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compose_sim.cli.console import say
from compose_sim.cli.run_lookup import only_run, run_option
from compose_sim.engine.lifetime.orphans import (
    FoundRun,
    all_nodes_started,
    find_runs,
    find_runs_named,
    interrupt,
    interrupt_until_over,
    starting_runs,
)
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.engine.run_folder.record import delete, finished_runs
from compose_sim.errors import ComposesimError, SpecError

_END_WITHIN_S = 15.0  # how long the process of a run may take to write its report once its nodes are gone


@click.command("down")
@run_option
@click.option("--all", "all_runs", is_flag=True, help="Every run of this machine.")
@click.option("--purge", is_flag=True, help="Delete the run's folder too: logs, report, shared files.")
def command(run: str | None, all_runs: bool, purge: bool) -> None:
    """End a run: remove its nodes and its network. Without --run it is this project's only one."""
    project = Path.cwd()
    named = None if all_runs else run
    found = find_runs_named(named, project) if named else find_runs(project)
    starting = starting_runs(project, found)
    if not all_runs:
        name = named or _only_run(found, starting, project)
        found = [left for left in found if left.run == name]
        starting = [folder for folder in starting if folder.name == name]
    ended = [_end(left, purge=purge) for left in found]
    ended += [_end_start(folder, purge=purge) for folder in starting]
    if named and not ended:
        _only_folder(named, purge=purge)
    if all_runs and purge:
        for folder in finished_runs(project):
            _purge(folder)
    elif all_runs and not ended:
        say("no run is under way")
    if not all(ended):
        sys.exit(ComposesimError.exit_code)


def _only_run(found: list[FoundRun], starting: list[RunFolder], project: Path) -> str:
    folders = {left.run: left.folder.path if left.folder else Path() for left in found}
    return only_run(folders | {folder.name: folder.path for folder in starting}, project)


def _end(left: FoundRun, *, purge: bool) -> bool:
    """End a run that has nodes; whether its process has ended too, where that matters."""
    folder, over = left.folder, True
    if folder and folder.is_claimed():
        if purge or not all_nodes_started(folder):
            over = interrupt_until_over(folder, left.engine, timeout_s=_END_WITHIN_S)
        else:
            interrupt(folder, left.engine)
    else:
        left.engine.remove(left.run)
    say(f"removed {left.run}: its nodes and network on {left.engine.name}")
    if not over:
        _still_there(left.run)
    elif folder and purge:
        _purge(folder)
    elif purge:
        say(f"the folder of {left.run} stays, as it is not one of `composesim up` that can be seen from here")
    return over


def _end_start(folder: RunFolder, *, purge: bool) -> bool:
    """End a run that has no nodes yet; whether its process has ended."""
    over = interrupt_until_over(folder, timeout_s=_END_WITHIN_S)
    if not over:
        _still_there(folder.name)
        return False
    say(f"ended {folder.name} while it was being started")
    if purge:
        _purge(folder)
    return True


def _still_there(run: str) -> None:
    say(f"the process of {run} has not ended within {_END_WITHIN_S:.0f} s; its folder stays")
    say(f"Try: composesim down --run {run}")


def _only_folder(run: str, *, purge: bool) -> None:
    folder = RunFolder(runs_folder(Path.cwd()) / run)
    if not folder.path.is_dir():
        raise SpecError(f"no run named '{run}' is known in '{Path.cwd()}'", hint="composesim ps --all")
    if purge:
        _purge(folder)
    else:
        say(f"nothing is left of {run} but its folder: {folder.path}")


def _purge(folder: RunFolder) -> None:
    delete(folder)
    say(f"deleted {folder.path}")
