"""Find the run that a command refers to, with or without a name, and the engine that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path

import click

from compose_sim.cli.console import say
from compose_sim.core.request.names import RUN_NAME
from compose_sim.core.text import format_count, parse_seconds
from compose_sim.engine.project_owner import check_project
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.registry import available_engines
from compose_sim.engine.run_folder.folder import RunFolder, check_run, is_run_folder, runs_folder, runs_of
from compose_sim.errors import EngineSilentError, SpecError


def run_name(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Reject a name that would lead out of the project when it becomes part of a path."""
    if name is not None and not RUN_NAME.fullmatch(name):
        raise SpecError(f"'{name}' is not a valid run name", hint="composesim ps --all")
    return name


def seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Parse the value of an option that is a duration, such as 20s."""
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


FILE, FOLDER = click.Path(dir_okay=False, path_type=Path), click.Path(file_okay=False, path_type=Path)
run_option = click.option(
    "--run",
    "run",
    metavar="NAME",
    callback=run_name,
    help="Name of the run (default: that of this project).",
)


def run_parameters(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take the name of a run as `--run NAME` or as an argument; it gets `run`."""

    @wraps(function)
    def command(*, named: str | None, run: str | None, **others: object) -> None:
        if named and run and named != run:
            raise click.UsageError(f"two runs are named: '{named}' and '{run}'")
        function(run=run or named, **others)

    return click.argument("named", required=False, metavar="[RUN]", callback=run_name)(run_option(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
everywhere_option = click.option(
    "--everywhere", is_flag=True, help="Act on the runs of every project on this machine, not of this one alone."
)
junit_option = click.option("--junit", "junit_file", type=FILE, help="Write the report as JUnit XML.")


def find_statuses(run: str | None = None) -> list[tuple[Engine, NodeStatus]]:
    """
    Return the nodes of a run, or of all runs, on every engine of this machine.

    An engine that does not answer is named on stderr; if there is nothing on the others, EngineSilentError is raised.
    """
    check_project(Path.cwd())
    found: list[tuple[Engine, NodeStatus]] = []
    silent: EngineSilentError | None = None
    for engine in available_engines():
        try:
            found += [(engine, status) for status in engine.statuses(run)]
        except EngineSilentError as error:
            silent = error
    if silent and not found:
        raise silent
    if silent:
        say(f"{silent.message}; its runs are not listed. Try: {silent.hint}")
    return found


def own_runs(live: Mapping[str, Path], project: Path) -> dict[str, Path]:
    """Return the runs whose folders are in this project."""
    return {name: folder for name, folder in live.items() if folder.parent == runs_folder(project)}


def only_run(live: Mapping[str, Path], project: Path) -> str:
    """Return the run that a command without a name refers to, the only one of this project; raise SpecError if there is no such."""
    own = sorted(own_runs(live, project))
    if len(own) == 1:
        return own[0]
    if own:
        raise SpecError(f"{len(own)} runs are running: {', '.join(own)}; add --run and a name", hint="composesim ps")
    if not live:
        raise SpecError("no run is running", hint="composesim ps --all")
    others = f"{format_count(len(live), 'run')} of other projects"
    raise SpecError(
        f"no run of '{project}' is running; there {'is' if len(live) == 1 else 'are'} {others}", hint="composesim ps"
    )


def select_live(run: str | None) -> tuple[Engine, str, Path]:
    """Return the engine, name and folder of a run that has nodes; without a name, of the only one of this project."""
    found = [(engine, status) for engine, status in find_statuses(run) if status.folder]
    live = {status.run: Path(status.folder) for _, status in found}
    if run is not None and run not in live:
        raise SpecError(f"no run named '{run}' has nodes", hint="composesim ps --all")
    name = run or only_run(live, Path.cwd())
    check_run(live[name])
    engine = next(engine for engine, status in found if status.run == name)
    return engine, name, live[name]


def select_folder(run: str | None) -> RunFolder:
    """
    Return the folder of a run, running or finished.

    Without a name, that is the only running run of this project, or else the latest one.
    """
    project = Path.cwd()
    if run is not None and (known := RunFolder(runs_folder(project) / run)).files.status("plan.json"):
        return known
    live = {status.run: Path(status.folder) for _, status in find_statuses(run) if status.folder}
    if run is not None:
        if run in live:
            check_run(live[run])
            return RunFolder(live[run])
        raise SpecError(f"there is no run '{run}' in '{project}'", hint="composesim ps --all")
    live = {name: folder for name, folder in live.items() if is_run_folder(folder)}  # a rendered folder has no record
    over = {folder: plan.st_mtime for folder in runs_of(project) if (plan := folder.files.status("plan.json"))}
    if over and not own_runs(live, project):
        return max(over, key=over.__getitem__)
    if not own_runs(live, project):
        raise SpecError(f"there is no run in '{project}'", hint="composesim up --nodes 2 train.py")
    found = live[only_run(live, project)]
    check_run(found)
    return RunFolder(found)


def named_folder(named: str | None) -> RunFolder:
    """Return the folder of a run by name or path; without either, as `select_folder`."""
    if named and "/" in named:
        check_run(Path(named).resolve())
        return RunFolder(Path(named).resolve())
    return select_folder(named)
