"""Copy a project, so that a run writes into a copy of its own and meets no checkpoint of the user's."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from compose_sim.app.request import Request
from compose_sim.core.checks import CHECKPOINT_ENDINGS
from compose_sim.core.plan.model import HIDDEN
from compose_sim.core.text import format_bytes
from compose_sim.errors import SpecError

_LEFT_OUT = frozenset(
    (HIDDEN, ".git", ".hg", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox")
)
_SOURCES = (".py", ".sh", ".yaml", ".yml", ".toml", ".md", ".cfg", ".ini")
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".parquet")
_WORDS = frozenset(("checkpoint", "checkpoints", "ckpt", "ckpts", "snapshot", "snapshots", "lightning", "logs"))
_STATE_WORDS = _WORDS | {"last", "latest", "best", "epoch", "step", "iter", "resume", "state", "optimizer", "final"}
_MOST = 8 << 30  # bytes
_SPLIT = re.compile(r"[^a-z]+")


@dataclass(slots=True)
class World:
    """The files that one run, and a run that resumes it, work with."""

    folder: Path
    left_out: list[str] = field(default_factory=list)  # checkpoints of the user's, below the project
    # Folder of the user's -> the empty one that the runs see instead
    replaced: dict[str, Path] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        """The copy of the project."""
        return self.folder / "project"

    @property
    def shared(self) -> Path:
        """The storage that all nodes share."""
        return self.folder / "shared"

    def sizes(self) -> dict[str, int]:
        """Return the files and their bytes, by absolute path without links."""
        found: dict[str, int] = {}
        for root in (self.project, self.shared, *self.replaced.values()):
            for folder, _, names in os.walk(os.path.realpath(root)):
                for name in names:
                    path = os.path.join(folder, name)  # noqa: PTH118 - many files
                    if f"/{HIDDEN}/" not in path[len(str(root)) :] and os.path.isfile(path):  # noqa: PTH113 - as above
                        found[path] = os.stat(path).st_size  # noqa: PTH116 - as above
        return found

    def request(self, request: Request, *words: str) -> Request:
        """Return the request with these further words for the script, in the copy of its project."""
        own, copy = str(request.folder), str(self.project)
        script = request.spec.script
        if script and script.startswith(own + "/"):
            script = copy + script[len(own) :]
        path = re.compile(rf"(?<![^\s=:,\"']){re.escape(own)}(?![^/\s:,\"'])")
        args = tuple(path.sub(lambda _: copy, word) for word in (*request.spec.args, *words))
        moved = request.with_spec(script=script, args=args, keep=False, name=None)
        return replace(moved, folder=self.project, program=None)


def make_world(
    project: Path, folder: Path, *, without: Collection[str] | None = None, replacing: Collection[str] = ()
) -> World:
    """
    Copy the project, `without` these files (paths without links), or without what looks like checkpoints; and without runs and caches.

    A folder of which no file is copied is left out too, unless it is empty. Raises SpecError if the project is too large. There is an
    empty folder for each one that it is `replacing`.
    """
    world = World(folder, replaced={each: folder / f"replaced-{n}" for n, each in enumerate(replacing, 1)})
    for own in (world.shared, *world.replaced.values()):
        own.mkdir(parents=True)
    chosen = [*_files(project, world, without)]
    size = sum(path.stat().st_size for path, _ in chosen if path.is_file() and not path.is_symlink())
    if size > _MOST:
        raise SpecError(
            f"the project '{project}' has {format_bytes(size)}, and this check copies it",
            hint="keep data outside of the project, and run composesim in a folder with the code",
        )
    world.project.mkdir()
    shutil.copymode(project, world.project)
    for path, target in chosen:
        goal = world.project / target
        goal.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            inside = path.resolve().is_relative_to(project.resolve()) and not path.readlink().is_absolute()
            goal.symlink_to(path.readlink() if inside else path.resolve())
        elif path.is_dir():
            goal.mkdir(exist_ok=True)
        else:
            shutil.copy2(path, goal)
    if os.geteuid() == 0:  # nodes may run as the owner of the project
        owner = project.stat()
        for each, _, names in os.walk(world.folder):
            for name in ("", *names):
                os.chown(Path(each, name), owner.st_uid, owner.st_gid, follow_symlinks=False)
    return world


def _files(project: Path, world: World, without: Collection[str] | None) -> Iterator[tuple[Path, str]]:
    """Yield the files, links and empty folders to copy, each with its path in the project."""
    for folder, folders, names in os.walk(project):
        at = Path(folder)
        inside = at.relative_to(project)
        if not (folders or names) and at != project:
            yield at, str(inside)
        kept = []
        for each in folders:
            if each in _LEFT_OUT or (at / each / "pyvenv.cfg").exists():
                continue
            if (at / each).is_symlink() and (without is not None or not _has_word(str(inside / each), _WORDS)):
                yield at / each, str(inside / each)
            else:
                kept.append(each)
        folders[:] = kept
        for name in names:
            path = at / name
            if path.is_symlink() or path.is_file():
                if without is not None and os.path.realpath(path) in without:
                    continue
                if without is None and _is_checkpoint(str(inside / name)):
                    world.left_out.append(str(inside / name))
                else:
                    yield path, str(inside / name)


def _is_checkpoint(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    words = _WORDS - {"logs"} if name.endswith(_TABLES) else _WORDS  # server_logs.csv may be data
    is_state = path.endswith(CHECKPOINT_ENDINGS) and _has_word(path, _STATE_WORDS)
    return not path.endswith(_SOURCES) and (is_state or _has_word(folder, _WORDS) or _has_word(name, words))


def _has_word(path: str, words: frozenset[str]) -> bool:
    return not words.isdisjoint(_SPLIT.split(path.lower()))
