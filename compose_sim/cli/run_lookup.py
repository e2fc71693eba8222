"""Which run does a verb mean, when it names one or none, and which engine has it?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from compose_sim.core.request.field_types import RUN_NAME
from compose_sim.core.units import parse_seconds
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.registry import available_engines
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder, runs_folder, runs_of
from compose_sim.errors import SpecError


def _run_name(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """A name becomes a path below the project: nothing that leads elsewhere may pass."""
    if name is not None and not RUN_NAME.fullmatch(name):
        raise SpecError(f"'{name}' is not the name of a run", hint="composesim ps --all")
    return name


def seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """The callback of an option that is a time, such as 20s."""
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


run_option = click.option(
    "--run", "run", metavar="NAME", callback=_run_name, help="The run; the only running one when left out."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
junit_option = click.option(
    "--junit",
    "junit_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report as JUnit XML.",
)


def find_statuses(run: str | None = None) -> list[tuple[Engine, NodeStatus]]:
    """Nodes of a run, or of all runs, on every engine of this machine."""
    return [(engine, status) for engine in available_engines() for status in engine.statuses(run)]


def own_runs(live: Mapping[str, Path], project: Path) -> dict[str, Path]:
    """Those of the runs whose folders lie in this project."""
    return {name: folder for name, folder in live.items() if folder.parent == runs_folder(project)}


def only_run(live: Mapping[str, Path], project: Path, *, elsewhere: bool = False) -> str:
    """
    The run that is meant where none is named: this project's only one.

    Another project's only run is meant where this one has none and `elsewhere` allows it, which a verb may that only reads.
    SpecError (exit 2) with the list where that is not one run.
    """
    own = own_runs(live, project)
    candidates = own or (live if elsewhere else {})
    if len(candidates) == 1:
        return next(iter(candidates))
    if not live:
        raise SpecError("no run is under way", hint="composesim ps --all")
    names = sorted(candidates or live)
    where = "" if candidates else f" in other projects, and none in '{project}'"
    are = "1 run is" if len(names) == 1 else f"{len(names)} runs are"
    raise SpecError(f"{are} under way{where}: {', '.join(names)}", hint=f"add --run {names[0]}")


def select_live(run: str | None) -> tuple[Engine, str, Path]:
    """The engine, name and folder of a run that has nodes; without a name this project's only one, else SpecError (exit 2)."""
    found = [(engine, status) for engine, status in find_statuses(run) if status.folder]
    live = {status.run: Path(status.folder) for _, status in found}
    if run is not None and run not in live:
        raise SpecError(f"no run named '{run}' has nodes", hint="composesim ps --all")
    name = run or only_run(live, Path.cwd())
    engine = next(engine for engine, status in found if status.run == name)
    return engine, name, live[name]


def select_folder(run: str | None, *, elsewhere: bool = True) -> RunFolder:
    """The folder of a run, running or over: by name, else this project's only running or latest one, else any running one.

    Without `elsewhere`, only this project's runs are meant where none is named.
    """
    project = Path.cwd()
    if run is not None and (known := RunFolder(runs_folder(project) / run)).files.status("plan.json"):
        return known
    live = {status.run: Path(status.folder) for _, status in find_statuses(run) if status.folder}
    if run is not None:
        if run in live:
            return RunFolder(live[run])
        raise SpecError(f"no run named '{run}' is known in '{project}'", hint="composesim ps --all")
    live = {name: folder for name, folder in live.items() if is_run_folder(folder)}  # what was rendered has no record
    over = {folder: plan.st_mtime for folder in runs_of(project) if (plan := folder.files.status("plan.json"))}
    if over and not own_runs(live, project):
        return max(over, key=over.__getitem__)
    if not live:
        raise SpecError(f"there is no run in '{project}'", hint="composesim up --nodes 2 train.py")
    return RunFolder(live[only_run(live, project, elsewhere=elsewhere)])
