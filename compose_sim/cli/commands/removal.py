"""Stop runs and remove everything but the folders; with `down --purge`, the folders too. Remove what is left of crashed runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compose_sim.cli.console import print_json, say
from compose_sim.cli.run_lookup import everywhere_option, json_option, only_run, run_parameters
from compose_sim.engine.lifetime.orphans import (
    FoundRun,
    all_nodes_started,
    find_runs,
    find_runs_named,
    forget_absent_runs,
    interrupt,
    interrupt_until_over,
    remove,
    starting_runs,
)
from compose_sim.engine.run_folder.finished import belongs_to, delete, delete_finished, finished_runs
from compose_sim.engine.run_folder.folder import RunFolder, check_run, runs_folder
from compose_sim.errors import ComposesimError, SpecError

_END_WITHIN_S = 15.0  # how long the process of a run may take to write the report once the nodes are gone


@click.command("down")
@run_parameters
@click.option("--all", "all_runs", is_flag=True, help="Stop every run of this project.")
@everywhere_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask before --all stops or deletes anything.")
@click.option("--purge", is_flag=True, help="Also delete the folder of the run: logs, report, shared files.")
def down_command(run: str | None, all_runs: bool, everywhere: bool, yes: bool, purge: bool) -> None:
    """Stop a run and remove its nodes (default: the only run of this project)."""
    if everywhere and not all_runs:
        raise click.UsageError("--everywhere is for --all: composesim down --all --everywhere")
    project = Path.cwd()
    named = None if all_runs else run
    found = find_runs_named(named, project) if named else find_runs(project)
    starting = starting_runs(project, found)
    if all_runs:
        found = [left for left in found if everywhere or left.is_in(project)]
        starting = [folder for folder in starting if everywhere or belongs_to(folder, project)]
        if not yes:
            runs = [*(left.run for left in found), *(folder.name for folder in starting)]
            _confirm(runs, project, purge=purge, everywhere=everywhere)
    else:
        folders = {left.run: left.folder.path if left.folder else Path() for left in found}
        name = named or only_run(folders | {folder.name: folder.path for folder in starting}, project)
        found = [left for left in found if left.run == name]
        starting = [folder for folder in starting if folder.name == name]
    for path in filter(None, (left.path for left in found)):
        check_run(path)
    ended = [_end(left, purge=purge) for left in found]
    ended += [_end_start(folder, purge=purge) for folder in starting]
    if named and not ended:
        ended.append(_only_folder(named, purge=purge))
    if all_runs and purge:
        ended += [_purge(folder) for folder in finished_runs(project)]
    elif all_runs and not ended:
        say("no run is running")
    if not all(ended):
        sys.exit(ComposesimError.exit_code)


def _confirm(runs: list[str], project: Path, *, purge: bool, everywhere: bool) -> None:
    """Ask whether to stop these runs and delete folders; raise SpecError without a terminal."""
    finished = [folder.name for folder in finished_runs(project)] if purge else []
    deletes = sorted({*finished, *runs}) if purge else []
    acts = [f"stop {', '.join(runs)}"] * bool(runs) + [f"delete the folders of {', '.join(deletes)}"] * bool(deletes)
    if not acts:
        return
    if not sys.stdin.isatty():
        raise SpecError(
            f"--all would {' and '.join(acts)}, and standard input is no terminal to ask on",
            hint=f"composesim down --all{' --everywhere' * everywhere} --yes{' --purge' * purge}",
        )
    click.confirm(f"Really {' and '.join(acts)}?", abort=True, err=True)


def _end(left: FoundRun, *, purge: bool) -> bool:
    """Stop a run that has nodes. Return False if its process did not end, or its folder could not be deleted."""
    folder, over = left.folder, True
    if folder and folder.is_claimed():
        if purge or not all_nodes_started(folder):
            over = interrupt_until_over(folder, left.engine, timeout_s=_END_WITHIN_S)
        else:
            interrupt(folder, left.engine)
    else:
        left.engine.remove(left.run)
    say(f"removed {left.run} from {left.engine.name}")
    if not over:
        _still_there(left.run)
    elif folder and purge:
        over = _purge(folder)
    elif purge:
        say(f"kept the folder of {left.run}: `composesim up` did not create it, or it is not visible from here")
    return over


def _end_start(folder: RunFolder, *, purge: bool) -> bool:
    """Stop a run that has no nodes yet. Return False if its process did not end, or its folder could not be deleted."""
    over = interrupt_until_over(folder, timeout_s=_END_WITHIN_S)
    if not over:
        _still_there(folder.name)
        return False
    say(f"stopped {folder.name} while it was starting")
    return _purge(folder) if purge else True


def _still_there(run: str) -> None:
    say(f"the process of {run} did not end within {_END_WITHIN_S:.0f} s; its folder was kept")
    say(f"Try: composesim down --run {run}")


def _only_folder(run: str, *, purge: bool) -> bool:
    folder = RunFolder(runs_folder(Path.cwd()) / run)
    if not folder.path.is_dir():
        raise SpecError(f"there is no run '{run}' in '{Path.cwd()}'", hint="composesim ps --all")
    if purge:
        return _purge(folder)
    say(f"{run} is already over; its folder is {folder.path}")
    return True


def _purge(folder: RunFolder) -> bool:
    """Delete a folder. Return False if that is impossible, which must not keep other runs from ending."""
    try:
        delete(folder)
    except (OSError, SpecError) as error:
        say(f"the folder of {folder.name} was not deleted: {error}")
        say(f"Try: ls -la {folder.path}")
        return False
    say(f"deleted {folder.path}")
    return True


@click.command("prune")
@click.option("--finished", is_flag=True, help="Also delete the folders of this project's finished runs.")
@everywhere_option
@json_option
def prune_command(finished: bool, everywhere: bool, as_json: bool) -> None:
    """Remove the nodes and networks of this project's crashed runs.

    Runs that are running, kept with --keep, or rendered are not touched.
    """
    project = Path.cwd()
    found = [left for left in find_runs(project) if everywhere or left.is_in(project)]
    removed = []
    for left in found:
        if left.state == "unreadable":
            say(f"skipped {left.run}: its plan cannot be read. Remove it: composesim down --run {left.run}")
        if left.state == "kept":
            say(f"skipped {left.run}: it was started with --keep. Remove it: composesim down --run {left.run}")
            continue
        if left.state != "crashed":
            continue
        remove(left)
        removed.append({"run": left.run, "engine": left.engine.name})
        if not as_json:
            say(f"removed {left.run} from {left.engine.name}")
    forget_absent_runs()
    live = {left.run for left in found if left.state != "crashed"}
    deleted = delete_finished(project, live=live) if finished else ()
    if as_json:
        print_json({"schema_version": 1, "removed": removed, "deleted": deleted})
        return
    for name in deleted:
        say(f"deleted the folder of {name}")
    if not (removed or deleted):
        say("nothing to remove")
