"""Find the runs on this machine and which of them have crashed, and end runs."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compose_sim.engine.host.docker_socket import docker_endpoint
from compose_sim.engine.host.run_names import claimed_name
from compose_sim.engine.project_owner import check_project
from compose_sim.engine.protocol import Engine
from compose_sim.engine.registry import available_plug_ins, make_engine
from compose_sim.engine.run_folder.finished import belongs_to, end_of
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder, last_event, runs_folder, runs_of
from compose_sim.engine.run_folder.node_files import OWN_EVENTS, folder_of
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import CommandError, ComposesimError, DaemonError, SpecError

_REMOVE_EVERY_S = 1.0  # a run that is starting may create nodes after the last removal


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run with nodes or a network on an engine."""

    engine: Engine
    run: str
    # None if the run was rendered, or its folder is unknown, cannot be seen from here, or is not safe.
    folder: RunFolder | None
    state: str  # see `state_of`
    path: Path | None = None  # of the folder, even if that cannot be seen from here

    @property
    def how_it_ended(self) -> str:
        """`interrupted` if the user had stopped it, else `crashed`."""
        stopping = last_event(self.folder.path, "", "stopping", file=OWN_EVENTS) if self.folder else {}
        return "interrupted" if stopping.get("reason") == "interrupted" else "crashed"

    def is_in(self, project: Path) -> bool:
        """Return whether it is a run of this project."""
        is_here = self.path is not None and self.path.parent == runs_folder(project)
        return is_here and (self.folder is None or belongs_to(self.folder, project))


def state_of(path: Path | None) -> str:
    """
    Return the state of a run that has nodes, from the folder in the labels; None if there is no label.

    `rendered`: started with `docker compose up`, in a folder of the user, which composesim never ends.
    `under way`: a process is running it, or the folder cannot be seen from here or is not safe to read.
    `kept`: over, and started with --keep.
    `unreadable`: over, but another version of composesim wrote the plan.
    `crashed`: composesim was killed.
    """
    if path is None:
        return "crashed"
    if not is_run_folder(path):
        return "rendered"
    folder = RunFolder(path)
    if not folder.files.exists() or folder.is_claimed():
        return "under way"
    if not folder.files.status("report.json"):
        return "crashed"
    try:
        return "kept" if folder.read_plan().keep else "crashed"
    except SpecError:
        return "unreadable"


def find_runs(project: Path, *, skip_silent: bool = False) -> list[FoundRun]:
    """
    Find every run with nodes or a network on an engine. One without a folder label is looked up in `project`.

    An engine that hangs is skipped, or else raises EngineSilentError.
    """
    check_project(project)
    runs = []
    for engine in _engines():
        if skip_silent and engine.problem():
            continue
        try:
            found = engine.remaining_runs()
        except (CommandError, DaemonError):
            continue  # Docker is installed, but the daemon does not respond
        runs += [_found_run(engine, name, folder, project) for name, folder in found.items()]
    return runs


def forget_absent_runs() -> None:
    """Remove what is left on this machine of runs that no engine knows, in any project: they cannot be running."""
    for engine in _engines():
        with suppress(CommandError, DaemonError):  # Docker is installed, but the daemon does not respond
            engine.forget_absent_runs()


def remove_crashed(project: Path) -> list[FoundRun]:
    """Remove what crashed runs of this project have left, such as before a reboot; return those runs."""
    removed = []
    for found in find_runs(project, skip_silent=True) if runs_of(project) else []:
        if found.state == "crashed" and found.is_in(project):
            with suppress(ComposesimError):  # it must not stop the run that is about to begin
                remove(found)
                removed.append(found)
    return removed


def remove(found: FoundRun) -> None:
    """Remove a run that is over; raise SpecError if another project of this user has begun one of the same name."""
    with claimed_name(found.engine.name, found.run):
        found.engine.remove(found.run)


def find_runs_named(run: str, project: Path) -> list[FoundRun]:
    """Find the runs of that name. If this project is running it, the plan names the engine, and no engine is queried."""
    folder = RunFolder(runs_folder(project) / run)
    if folder.is_claimed():
        with suppress(SpecError):  # it has no plan yet
            engine = make_engine(folder.read_plan().engine)
            return [FoundRun(engine=engine, run=run, folder=folder, state="under way")]
    return [found for found in find_runs(project) if found.run == run]


def starting_runs(project: Path, found: list[FoundRun]) -> list[RunFolder]:
    """Return the runs of a project that have a process but nothing on any engine yet."""
    known = {each.run for each in found}
    return [folder for folder in runs_of(project) if folder.name not in known and folder.is_claimed()]


def interrupt(folder: RunFolder, engine: Engine | None = None) -> None:
    """Record that a run is interrupted, and remove its nodes from the engine, by default the one in the plan."""
    with suppress(FileNotFoundError):  # the folder is being created
        folder.append_event("stopping", reason="interrupted")
    if engine is None:
        with suppress(SpecError):  # it has no plan yet, and therefore no nodes
            engine = make_engine(folder.read_plan().engine)
    if engine:
        engine.remove(folder.name)


def interrupt_until_over(folder: RunFolder, engine: Engine | None = None, *, timeout_s: float) -> bool:
    """Interrupt a run until the process has exited, or until the timeout; return whether it has."""
    over = end_of(folder)
    deadline = time.monotonic() + timeout_s
    while True:
        interrupt(folder, engine)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or over.wait(min(_REMOVE_EVERY_S, left_s)):
            return over.is_set()


def all_nodes_started(folder: RunFolder) -> bool:
    """Return whether every node has written an event, so that no more nodes will be created."""
    try:
        nodes = folder.read_plan().nodes
    except SpecError:
        return False
    return all(folder.files.status(f"{folder_of(folder.files, node.name)}events/{node.name}.jsonl") for node in nodes)


def _engines() -> list[Engine]:
    """Return the engines that may have runs. A Docker daemon on another machine is left alone; whether it responds shows later."""
    has_docker = shutil.which("docker") and docker_endpoint().startswith("unix://")
    return [make_engine(name) for name in ("local", *(("docker",) if has_docker else ()), *available_plug_ins())]


def _found_run(engine: Engine, run: str, labeled: str, project: Path) -> FoundRun:
    guess = runs_folder(project) / run
    path = Path(labeled) if labeled else guess if SafeFolder(guess).exists() else None
    folder = RunFolder(path) if path and is_run_folder(path) and SafeFolder(path).exists() else None
    return FoundRun(engine=engine, run=run, folder=folder, state=state_of(path), path=path)
