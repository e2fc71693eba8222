"""What does `composesim down` do? It ends runs and leaves nothing of them but their folders; with --purge not even those."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.console import say
from compose_sim.cli.select import run_option
from compose_sim.engine.leftovers import Leftover, find_leftovers, leftover_of
from compose_sim.engine.record import delete, end_of, finished_runs
from compose_sim.engine.rundir import RunFolder, runs_folder
from compose_sim.errors import SpecError

_REPORT_WITHIN_S = 15.0  # how long the process of a run may take to write its report once its nodes are gone


@click.command("down")
@run_option
@click.option("--all", "all_runs", is_flag=True, help="Every run of this machine.")
@click.option("--purge", is_flag=True, help="Delete the run's folder too: logs, report, shared files.")
def command(run: str | None, all_runs: bool, purge: bool) -> None:
    """End a run: remove its nodes and its network."""
    found = find_leftovers(Path.cwd()) if all_runs or run is None else leftover_of(run, Path.cwd())
    if not all_runs and run is None and len(found) != 1:
        raise _not_one(found)
    for each in found:
        _end(each, purge=purge)
    if run and not found:
        _only_folder(run, purge=purge)
    if all_runs and purge:
        for folder in finished_runs(Path.cwd()):
            _purge(folder)
    elif all_runs and not found:
        say("no run is under way")


def _end(left: Leftover, *, purge: bool) -> None:
    folder = left.folder
    if folder and folder.is_claimed():
        folder.append("stopping", reason="interrupted")
    left.engine.remove(left.run)
    say(f"removed {left.run}: its nodes and network on {left.engine.name}")
    if folder and purge:
        end_of(folder).wait(_REPORT_WITHIN_S)
        _purge(folder)


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


def _not_one(found: list[Leftover]) -> SpecError:
    names = [each.run for each in found]
    if not names:
        return SpecError("no run is under way", hint="composesim ps --all")
    return SpecError(
        f"{len(names)} runs are under way: {', '.join(names)}", hint=f"composesim down --run {names[0]}, or --all"
    )
