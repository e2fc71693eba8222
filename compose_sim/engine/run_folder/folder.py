"""Lay out, claim and delete the folder of a run, and read and write composesim's own files in it."""

from __future__ import annotations

import compileall
import fcntl
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from compose_sim import assets
from compose_sim.core.events.events import Event, parse_event
from compose_sim.core.plan.model import HIDDEN, KINDS, NODES, TOKEN, Plan, plan_from_dict
from compose_sim.engine.project_owner import check_project
from compose_sim.engine.run_folder.node_files import OWN_EVENTS
from compose_sim.engine.run_folder.safe_files import SafeFolder, UnsafeFileError
from compose_sim.errors import EngineError, ResourceError, SpecError, resource_error
from compose_sim.node.shared.authentication import SECRET
from compose_sim.node.shared.event_log import RunClock

if TYPE_CHECKING:
    from compose_sim.core.report.report import Report
import hashlib

from compose_sim.core.plan.model import Choice
from compose_sim.node.shared.event_log import CLOCK_FILE

VARIABLE = "COMPOSESIM_RUNS"
_PRIVATE, _PASSABLE = 0o700, 0o711


def runs_folder(project: Path) -> Path:
    """Return the folder of all runs of a project folder; raise SpecError if root must not work there."""
    check_project(project)
    home = _home(project)
    check_project(home, home / HIDDEN)
    return home / HIDDEN / "runs"


def make_home(runs: Path) -> None:
    """Make the folder above `.composesim`, if it does not exist, for this user only. Nodes of root may belong to another user."""
    runs.parents[1].mkdir(_PRIVATE if os.geteuid() else _PASSABLE, parents=True, exist_ok=True)


def location_choice(project: Path) -> Choice | None:
    """Return why the runs are not in the project; None if they are."""
    home = _home(project)
    if home == project:
        return None
    why = f"requested by {VARIABLE} or --runs-dir" if os.environ.get(VARIABLE) else f"'{project}' cannot be written"
    return Choice(what="runs", value=str(runs_folder(project)), why=why)


def _home(project: Path) -> Path:
    if chosen := os.environ.get(VARIABLE):
        return Path(os.path.realpath(chosen))  # as nodes see it, which must not write there
    if not project.exists() or any(os.access(path, os.W_OK) for path in (project, project / HIDDEN / "runs")):
        return project
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "composesim" / f"{project.name}-{hashlib.sha256(os.fsencode(project)).hexdigest()[:12]}"


def begin_clock(files: SafeFolder) -> None:
    """Start the clock of a new run."""
    files.replace(CLOCK_FILE, str(RunClock.begin()))


def began_at(files: SafeFolder) -> float | None:
    """Return when a run began, in Unix seconds; None if it has no clock."""
    status = files.status(CLOCK_FILE)
    return round(status.st_mtime, 3) if status else None


def read_clock(files: SafeFolder) -> RunClock:
    """Return the clock of a run; a new one if the run has none."""
    try:
        return RunClock.parse(files.read_text(CLOCK_FILE))
    except (OSError, UnsafeFileError):
        return RunClock.begin()


_WRITTEN_BY_ALL_NODES = ("shared", "record", "mps")
_WITH_SOCKETS = ("debug", "mps")  # whoever can open these controls a rank
_KEPT = ("shared",)  # until the run's folder is deleted
_OUTSIDE_NODES = ("app", "cli", "core", "engine", "templates")  # folders of plug-ins
_WRITTEN_BY_US = ("journal", "node", "control", "requests", "identity", "empty", "secrets", "services")
COPY = "copy"  # of the project, without what a run wrote
_COMPARED = "compared"
_OWN_FILES = (COPY, _COMPARED, "report.json", "plan.json", "docker-compose.yml", ".env")
_CLAIM_TIMEOUT_S = 0.5  # processes that only check whether a run is claimed also hold its lock for a moment
_RETRY_S = 0.02


def is_run_folder(path: Path) -> bool:
    """Return whether a folder is where `up` puts runs; a rendered one can be anywhere, and belongs to the user."""
    return path.name not in ("", "..") and path.parts[-3:-1] == (HIDDEN, "runs")


def check_run(path: Path) -> None:
    """Raise SpecError if root must not work with the run in this folder, which belongs to another user."""
    check_project(path.parents[2] if is_run_folder(path) else path, path)


def runs_of(project: Path) -> list[RunFolder]:
    """Return the folders of all runs of a project, by name."""
    runs = SafeFolder(runs_folder(project))
    return [RunFolder(runs.path / name) for name in runs.folders()]


class RunFolder:
    """One run's folder: plan, compose file, node code, events, logs, shared storage, report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = SafeFolder(path)
        self._lock: int | None = None
        self._appended: SimpleQueue[tuple[Event, ResourceError | None]] = SimpleQueue()

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @cached_property
    def clock(self) -> RunClock:
        """The clock of the run."""
        return read_clock(self.files)

    @property
    def compared(self) -> RunFolder:
        """The folder of the run with which this one was compared, if there is one: the page shows both."""
        return RunFolder(self.path / _COMPARED)

    def keep_compared(self, other: RunFolder) -> None:
        """Move the folder of a run that is over into this one."""
        self.files.remove_tree(_COMPARED)
        if stat.S_ISDIR(other.path.lstat().st_mode):  # no link, which a script may have put there
            other.path.rename(self.path / _COMPARED)

    def claim(self) -> None:
        """Make the folder and lock it for this process. Raise SpecError if another process holds it, or if it is not safe to use."""
        if is_run_folder(self.path):
            make_home(self.path.parent)
        project = SafeFolder(self.path.parent.parent)
        if is_run_folder(self.path) and not project.status(".gitignore"):
            project.replace(".gitignore", "*\n")
        deadline = time.monotonic() + _CLAIM_TIMEOUT_S
        while (lock := self._try_lock()) is None:
            if time.monotonic() > deadline:
                raise SpecError(
                    f"a run named '{self.name}' is under way",
                    hint=f"use another --name, or end it: composesim down --run {self.name}",
                )
            time.sleep(_RETRY_S)
        self._lock = lock

    def release(self) -> None:
        """Unlock the folder; so does the end of the process."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def is_claimed(self) -> bool:
        """Return whether a process, which may be this one, is running this run; True if that cannot be known."""
        try:
            lock = self.open_lock()
        except FileNotFoundError:
            return False
        except SpecError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two processes that check must not see each other
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def open_lock(self, flags: int = 0) -> int:
        """Open the lock file; raise SpecError if it belongs to another user."""
        try:
            return self.files.open_file("lock", os.O_RDWR | flags)
        except PermissionError as error:
            raise SpecError(
                f"the run '{self.name}' belongs to another user: {error.strerror} for '{error.filename}'",
                hint=f"ls -l {self.path}, or start one of your own with another --name",
            ) from None

    def clear(self, user_id: int, group_id: int, *, token: bool = False, containers: Collection[str] = ()) -> None:
        """Delete what an earlier run of this name left, except the shared storage, and lay out a new run."""
        for name in (*KINDS, NODES, *_WRITTEN_BY_ALL_NODES, *_WRITTEN_BY_US, *_OWN_FILES):
            if name not in _KEPT:
                self.files.remove_tree(name)
        lay_out(self.path, user_id, group_id, token=token, containers=containers, bytecode=True)
        begin_clock(self.files)
        self.__dict__.pop("clock", None)

    def write_plan(self, plan: Plan) -> None:
        """Write `plan.json`."""
        self.files.replace("plan.json", json.dumps(plan.to_dict(), indent=1))

    def read_plan(self) -> Plan:
        """Return the plan of this run; raise SpecError if the folder does not contain one."""
        try:
            return plan_from_dict(self.files.read_json("plan.json"))
        except (OSError, ValueError) as error:
            raise SpecError(f"'{self.path}' is not the folder of a run: {error}", hint="composesim ps --all") from None

    def write_command(self, words: Sequence[str]) -> None:
        """Write `command.json`: the command that started the run, and the folder in which it was typed."""
        self.files.replace("command.json", json.dumps({"folder": str(Path.cwd()), "words": list(words)}))

    def read_command(self) -> tuple[Path, tuple[str, ...]]:
        """Return the folder and the words after `composesim` of the command that started the run; SpecError if there is none."""
        try:
            match self.files.read_json("command.json"):
                case {"folder": str(folder), "words": [*words]} if all(isinstance(word, str) for word in words):
                    return Path(folder), tuple(words)
        except (OSError, ValueError):
            pass
        raise SpecError(
            f"the run '{self.name}' has no command that can be run again",
            evidence="it was started from Python, from standard input, or by an earlier version",
            hint=f"composesim report --run {self.name}",
        )

    def read_token(self) -> str:
        """Return the run's secret; "" if it has none, or if it belongs to another user."""
        try:
            return self.files.read_text(TOKEN).strip()
        except (OSError, UnsafeFileError):
            return ""

    def append_event(
        self,
        kind: str,
        data: Mapping[str, Any] | None = None,
        /,
        *,
        node: str | None = None,
        rank: int | None = None,
        **more: Any,
    ) -> None:
        """
        Append an event of composesim itself, with the data of a mapping and of keyword arguments.

        If there is no space for it, for example, the run goes on without its file.
        """
        event = Event(t=self.clock.now(), kind=kind, node=node, rank=rank, data={**(data or {}), **more})
        problem = None
        try:
            self.files.append(OWN_EVENTS, event.to_json(self.name) + "\n")
        except UnsafeFileError as error:
            raise EngineError(f"a node has replaced a file of composesim: {error.message}", hint=error.hint) from None
        except OSError as error:
            if not (problem := resource_error(error)):
                raise
        self._appended.put((event, problem))

    def take_appended(self) -> list[tuple[Event, ResourceError | None]]:
        """Return, once, the events that this object has appended, and why one could not be written."""
        return [self._appended.get() for _ in range(self._appended.qsize())]

    def write_report(self, report: Report) -> None:
        """Write `report.json`."""
        self.files.replace("report.json", json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")

    def read_report(self) -> Report | None:
        """Return the report, or None if the run has not written one; raise SpecError if the file is not a report."""
        from compose_sim.core.report.report import Report  # takes 0.03 s, and `render` needs none

        try:
            return Report.from_dict(self.files.read_json("report.json"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            file = self.path / "report.json"
            raise SpecError(f"'{file}' is not a report: {error}", hint="composesim ps --all") from None

    def _try_lock(self) -> int | None:
        """Return the locked file, or None while another process holds it."""
        lock = self.open_lock(os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            present = self.files.status("lock")
            if present and os.path.samestat(os.fstat(lock), present):  # else the folder was deleted before we locked it
                return lock
        except BlockingIOError:
            pass
        os.close(lock)
        return None


def try_read_plan(folder: str) -> Plan | None:
    """Return a run's plan; None if the folder has been deleted."""
    try:
        return RunFolder(Path(folder)).read_plan()
    except SpecError:
        return None


def last_event(folder: Path, node: str, kind: str, *, file: str = "") -> Mapping[str, Any]:
    """Return the data of the latest event of a kind in a node's file, or in another file; empty if there is none."""
    try:
        lines = SafeFolder(folder).read_text(file or f"events/{node}.jsonl").splitlines()
    except (OSError, UnsafeFileError):
        return {}
    events = (parse_event(line) for line in reversed(lines))
    return next((event.data for event in events if event and event.kind == kind), {})


def end_of_output(folder: Path, node: str, lines: int) -> str:
    """Return the last lines of `logs/NODE.out`, where a node's first process prints without a container; "" if there are none."""
    try:
        text = SafeFolder(folder).read_text(f"logs/{node}.out")
    except (OSError, UnsafeFileError):
        return ""
    return "".join(text.splitlines(keepends=True)[-lines:])


def lay_out(
    path: Path,
    user_id: int,
    group_id: int,
    *,
    token: bool = False,
    containers: Collection[str] = (),
    bytecode: bool = False,
) -> None:
    """
    Make what nodes need: the code, folders that are writable for the user that nodes run as, and new secrets.

    Each of the `containers` gets folders in which no other one can write.
    """
    files, user = SafeFolder(path), (user_id, group_id)
    files.remove_tree("node")
    files.share_folder("node", user)
    # Bytecode helps only nodes that run this very Python: nodes cannot store bytecode, and each process would compile again.
    # We never import most of this code, so the first run compiles it, if the package can be written.
    code = {"node": assets.node_code()}
    code |= {f"node/plugins/{name}": folder for name, folder in assets.plug_ins_with("node").items()}
    for name, folder in code.items():
        if bytecode and not sys.dont_write_bytecode:
            compileall.compile_dir(folder, quiet=2)
        files.copy_tree(folder, name, leave_out=_OUTSIDE_NODES if bytecode else (*_OUTSIDE_NODES, "__pycache__"))
    _write_secret(files, SECRET, user)
    files.share_folder("journal", user, private=True)
    apart = [f"{NODES}/{node}/{kind}" for node in containers for kind in KINDS]
    names = [*(apart or KINDS), *_WRITTEN_BY_ALL_NODES]
    files.make_folders(names, user, private={name for name in names if name.rpartition("/")[2] in _WITH_SOCKETS})
    if token:
        _write_secret(files, TOKEN, user)


def _write_secret(files: SafeFolder, name: str, user: tuple[int, int]) -> None:
    """Write a new secret that only the nodes' user can read."""
    folder = name.rpartition("/")[0]
    files.share_folder(folder, user, private=True)
    files.replace(f"{folder}/.gitignore", "*\n")
    files.replace(name, secrets.token_hex(32), mode=0o600)
