"""Which run does a verb mean, when it names one or none, and which engine has it?"""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.engine.engines import available_engines
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.rundir import RunFolder, runs_folder
from compose_sim.errors import SpecError

run_option = click.option("--run", "run", metavar="NAME", help="The run; the only running one when left out.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def find_statuses(run: str | None = None) -> list[tuple[Engine, NodeStatus]]:
    """Nodes of a run, or of all runs, on every engine of this machine."""
    return [(engine, status) for engine in available_engines() for status in engine.statuses(run)]


def select_live(run: str | None) -> tuple[Engine, str, Path]:
    """The engine, name and folder of a run that has nodes; SpecError (exit 2) with the list where that is not one run."""
    found = find_statuses(run)
    names = sorted({status.run for _, status in found})
    if len(names) == 1:
        engine, status = next((engine, status) for engine, status in found if status.folder)
        return engine, status.run, Path(status.folder)
    if run is not None:
        raise SpecError(f"no run named '{run}' has nodes", hint="composesim ps --all")
    if not names:
        raise SpecError("no run is under way", hint="composesim up --nodes 2 train.py")
    raise SpecError(f"{len(names)} runs are under way: {', '.join(names)}", hint=f"add --run {names[0]}")


def select_folder(run: str | None) -> RunFolder:
    """The folder of a run, running or over: by name, else this project's only running or latest one, else any running one."""
    known = runs_folder(Path.cwd())
    if run is not None and (known / run / "plan.json").is_file():
        return RunFolder(known / run)
    live = {status.run: Path(status.folder) for _, status in find_statuses(run) if status.folder}
    if run is not None:
        if run in live:
            return RunFolder(live[run])
        raise SpecError(f"no run named '{run}' is known in '{Path.cwd()}'", hint="composesim ps --all")
    own = {name: folder for name, folder in live.items() if folder.parent == known}
    over = sorted(known.glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    if not own and over:
        return RunFolder(over[-1].parent)
    candidates = own or live
    if not candidates:
        raise SpecError(f"there is no run in '{Path.cwd()}'", hint="composesim up --nodes 2 train.py")
    if len(candidates) > 1:
        names = ", ".join(sorted(candidates))
        raise SpecError(f"{len(candidates)} runs are under way: {names}", hint=f"add --run {min(candidates)}")
    return RunFolder(next(iter(candidates.values())))
