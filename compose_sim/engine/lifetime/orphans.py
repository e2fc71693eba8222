"""What is there of runs on this machine, and whose is it? Found with as few calls of an engine as there can be."""

from __future__ import annotations

import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compose_sim.engine.protocol import Engine
from compose_sim.engine.registry import make_engine
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder, runs_folder
from compose_sim.engine.run_folder.record import end_of
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import CommandError, SpecError

_BETWEEN_REMOVALS_S = 1.0  # a run that is being started may make nodes after we removed all there were


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A run of which an engine has something: nodes or a network."""

    engine: Engine
    run: str
    folder: (
        RunFolder | None
    )  # None where it was rendered, is not to be seen, or only a network is left, which has no label
    state: str  # as `state_of` says

    def is_under_way(self) -> bool:
        """Whether a process still runs it, or may do so."""
        return self.state == "under way"

    def is_kept(self) -> bool:
        """Whether it came to its end, and its nodes were kept because a person asked for it."""
        return self.state == "kept"

    def is_crashed(self) -> bool:
        """Whether nothing and nobody wants what is left of it."""
        return self.state == "crashed"


def state_of(path: Path | None) -> str:
    """
    Where a run stands that has nodes, by the folder that they are labelled with; None where nothing tells of one.

    `rendered`: started by `docker compose up`, in a folder that is the person's own, and none of our business to end.
    `under way`: a process runs it, or its folder is not to be seen from here. `unreadable`: it has a report, and a plan
    that another version wrote. `kept`: over, with --keep. `crashed`: composesim was killed.
    """
    if path is None:
        return "crashed"
    if not is_run_folder(path):
        return "rendered"
    folder = RunFolder(path)
    if not _is_visible(path) or folder.is_claimed():
        return "under way"
    if not folder.report_file.is_file():
        return "crashed"
    try:
        return "kept" if folder.read_plan().keep else "crashed"
    except SpecError:
        return "unreadable"


def engines_to_ask() -> list[Engine]:
    """Engines of this machine that may have nodes. Whether Docker answers shows when it is asked; asking twice takes time."""
    with_docker = shutil.which("docker") and _docker_is_here()
    return [make_engine("local"), *([make_engine("docker")] if with_docker else [])]


def _docker_is_here() -> bool:
    """Whether the docker command speaks to this machine: what other machines run is not ours to end."""
    status, endpoint = try_output_of(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
    return status == 0 and endpoint.startswith("unix://")


def find_leftovers(project: Path) -> list[Leftover]:
    """Everything of every run on every engine that answers; `project` is where a bare network's run may have its folder."""
    found = []
    for engine in engines_to_ask():
        try:
            runs = engine.runs_left()
            folders = {status.run: status.folder for status in engine.statuses() if status.folder} if runs else {}
        except CommandError:
            continue  # installed, and no daemon answers: `composesim doctor` tells
        found += [_leftover(engine, run, folders.get(run, ""), project) for run in runs]
    return found


def leftover_of(run: str, project: Path) -> list[Leftover]:
    """What is there of one run. One that this project is running has its engine in its plan: nothing need be asked."""
    folder = RunFolder(runs_folder(project) / run)
    if folder.is_claimed():
        with suppress(SpecError):  # it has no plan yet
            engine = make_engine(folder.read_plan().engine)
            return [Leftover(engine=engine, run=run, folder=folder, state="under way")]
    return [left for left in find_leftovers(project) if left.run == run]


def runs_without_nodes(project: Path, found: list[Leftover]) -> list[RunFolder]:
    """Runs of a project that a process is getting ready, and of which no engine has anything yet."""
    known = {left.run for left in found}
    folders = (RunFolder(lock.parent) for lock in sorted(runs_folder(project).glob("*/lock")))
    return [folder for folder in folders if folder.name not in known and folder.is_claimed()]


def interrupt(folder: RunFolder, engine: Engine | None = None) -> None:
    """Tell a run that it ends, and remove the nodes that it has; without `engine`, on the one that its plan names."""
    with suppress(FileNotFoundError):  # its folder is being laid out
        folder.append("stopping", reason="interrupted")
    if engine is None:
        with suppress(SpecError):  # it has no plan yet, and therefore no nodes
            engine = make_engine(folder.read_plan().engine)
    if engine:
        engine.remove(folder.name)


def end(folder: RunFolder, engine: Engine | None = None, *, within_s: float) -> bool:
    """Interrupt a run until its process has ended; whether it has."""
    over = end_of(folder)
    deadline = time.monotonic() + within_s
    while True:
        interrupt(folder, engine)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or over.wait(min(_BETWEEN_REMOVALS_S, left_s)):
            return over.is_set()


def all_nodes_begun(folder: RunFolder) -> bool:
    """Whether every node has said a first word: no more will come."""
    try:
        nodes = folder.read_plan().nodes
    except SpecError:
        return False
    return all((folder.path / "events" / f"{node.name}.jsonl").exists() for node in nodes)


def _leftover(engine: Engine, run: str, labelled: str, project: Path) -> Leftover:
    guess = runs_folder(project) / run  # for a bare network, which does not say
    path = Path(labelled) if labelled else guess if _is_visible(guess) else None
    is_ours = path is not None and is_run_folder(path) and _is_visible(path)
    return Leftover(engine=engine, run=run, folder=RunFolder(path) if path and is_ours else None, state=state_of(path))


def _is_visible(path: Path) -> bool:
    """Whether the folder can be seen from here: it may be in another container, or another user's."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False
