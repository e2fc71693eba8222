"""What is there of runs on this machine, and whose is it? Found with as few calls of an engine as there can be."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from compose_sim.engine.engines import make_engine
from compose_sim.engine.process import try_output_of
from compose_sim.engine.protocol import Engine
from compose_sim.engine.rundir import RunFolder, runs_folder
from compose_sim.errors import CommandError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A run of which an engine has something: nodes or a network."""

    engine: Engine
    run: str
    folder: RunFolder | None  # None where only a network is left, which does not say

    def is_under_way(self) -> bool:
        """Whether a process still runs it."""
        return self.folder is not None and self.folder.is_claimed()

    def is_kept(self) -> bool:
        """Whether it came to its end, and its nodes were kept because a person asked for it."""
        return self.folder is not None and self.folder.report_file.is_file() and self.folder.read_plan().keep


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
        found += [Leftover(engine=engine, run=run, folder=_folder(run, folders.get(run, ""), project)) for run in runs]
    return found


def leftover_of(run: str, project: Path) -> list[Leftover]:
    """What is there of one run. One that this project is running has its engine in its plan: nothing need be asked."""
    folder = RunFolder(runs_folder(project) / run)
    if folder.is_claimed() and (folder.path / "plan.json").is_file():
        return [Leftover(engine=make_engine(folder.read_plan().engine), run=run, folder=folder)]
    return [left for left in find_leftovers(project) if left.run == run]


def _folder(run: str, labelled: str, project: Path) -> RunFolder | None:
    path = Path(labelled) if labelled else runs_folder(project) / run
    return RunFolder(path) if path.is_dir() else None
