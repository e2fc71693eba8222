"""What lies in a run's folder, and how is it written so that a crash never leaves half a file?"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose_sim import assets
from compose_sim.core.events.events import Event, parse_event
from compose_sim.core.plan.model import TOKEN, Plan, plan_from_dict
from compose_sim.core.report.report import Report
from compose_sim.errors import EngineError, SpecError

_NODE_FOLDERS = ("events", "logs", "observations", "shared", "debug", "mps")  # what nodes write to
_PROBES_TAKE_S = 0.5  # those who only ask for the lock hold it too, for a moment
_BETWEEN_TRIES_S = 0.02


def runs_folder(project: Path) -> Path:
    """The folder of all runs of a project folder."""
    return project / ".composesim" / "runs"


def is_run_folder(path: Path) -> bool:
    """Whether a folder lies where `up` puts runs; one that was rendered lies anywhere, and is the person's own."""
    return path.name not in ("", "..") and path.parts[-3:-1] == (".composesim", "runs")


class RunFolder:
    """One run's folder: plan, compose file, node code, events, logs, shared storage, report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def document(self) -> Path:
        """The compose file."""
        return self.path / "docker-compose.yml"

    @property
    def report_file(self) -> Path:
        """The report, there when the run is over."""
        return self.path / "report.json"

    def claim(self) -> None:
        """Make the folder and hold it for this process, which is the run's; SpecError while another one holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        ignore = self.path.parent.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        deadline = time.monotonic() + _PROBES_TAKE_S
        while (lock := _try_lock(self.path / "lock")) is None:
            if time.monotonic() > deadline:
                raise SpecError(
                    f"a run named '{self.name}' is under way",
                    hint=f"take another --name, or end it: composesim down --run {self.name}",
                )
            time.sleep(_BETWEEN_TRIES_S)
        self._lock = lock

    def release(self) -> None:
        """Hold the folder no more; the end of the process does the same."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def is_claimed(self) -> bool:
        """Whether some process (this one too) is running this run."""
        try:
            probe = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True  # another user's: whether it is over is not ours to know
        try:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two who ask do not see each other
        except BlockingIOError:
            return True
        finally:
            os.close(probe)
        return False

    def clear(self, user_id: int, group_id: int, *, token: bool = False) -> None:
        """Empty the folder of an earlier run of this name, all but its shared storage, and lay out a new one."""
        for name in (*_NODE_FOLDERS, "node", "control", "requests", "identity", "secrets", "services"):
            if name != "shared":
                shutil.rmtree(self.path / name, ignore_errors=True)
        for name in ("report.json", "plan.json", "docker-compose.yml", ".env"):
            (self.path / name).unlink(missing_ok=True)
        lay_out(self.path, user_id, group_id, token=token, bytecode=True)

    def write_plan(self, plan: Plan) -> None:
        """`plan.json`: only its owner may read it, since the environment may hold secrets."""
        write_file(self.path / "plan.json", json.dumps(plan.to_dict(), indent=1), mode=0o600)

    def read_plan(self) -> Plan:
        """The plan of this run; SpecError where the folder is not a run's."""
        try:
            return plan_from_dict(json.loads((self.path / "plan.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"'{self.path}' is not the folder of a run: {error}", hint="composesim ps --all") from None

    def read_token(self) -> str:
        """The run's secret; "" where it has none, or where it is another user's."""
        try:
            return (self.path / TOKEN).read_text().strip()
        except OSError:
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
        """Append an event of composesim itself, with the data of a mapping and of keyword arguments."""
        event = Event(t=time.time(), kind=kind, node=node, rank=rank, data={**(data or {}), **more})
        _append_line(self.path / "events" / "composesim.jsonl", event.to_json(self.name))

    def write_report(self, report: Report) -> None:
        """Write `report.json`."""
        write_file(self.report_file, json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")

    def read_report(self) -> Report | None:
        """Return the report, or None if the run has not written one; raise SpecError if the file is not a report."""
        try:
            return Report.from_dict(json.loads(self.report_file.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise SpecError(f"'{self.report_file}' is not a report: {error}", hint="composesim ps --all") from None


def try_read_plan(folder: str) -> Plan | None:
    """Return a run's plan; None if its folder has been deleted."""
    try:
        return RunFolder(Path(folder)).read_plan()
    except SpecError:
        return None


def last_event(folder: Path, node: str, kind: str) -> Mapping[str, Any]:
    """The data of the latest event of a kind in a node's file; empty where there is none."""
    try:
        lines = (folder / "events" / f"{node}.jsonl").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    events = (parse_event(line) for line in reversed(lines))
    return next((event.data for event in events if event and event.kind == kind), {})


def _try_lock(path: Path) -> int | None:
    """The lock of a run's folder, or None while another process holds it; SpecError where it is another user's."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError as error:
        raise SpecError(
            f"the folder '{path.parent}' is another user's: {error.strerror}", hint="take another --name"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass  # held; or deleted with its folder between our opening it and our holding it
    os.close(lock)
    return None


def _append_line(path: Path, line: str) -> None:
    """One write at the end of a plain file. Nodes write to its folder: what they put in its place must lead nowhere."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise EngineError(f"'{path}' is not a plain file: a node has replaced it", hint=f"ls -l {path}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise EngineError(f"'{path}' is not a plain file: a node has replaced it", hint=f"ls -l {path}")
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def lay_out(path: Path, user_id: int, group_id: int, *, token: bool = False, bytecode: bool = False) -> None:
    """What nodes need: their code, folders they may write to as the user they run as, and a `token`, fresh each time."""
    # Bytecode, where the package has it, is for whichever nodes run this very Python: theirs is not kept, and each process makes it.
    ignored = shutil.ignore_patterns(*(() if bytecode else ("__pycache__",)))
    shutil.copytree(assets.node_code(), path / "node", ignore=ignored, dirs_exist_ok=True)
    (path / "control").mkdir(exist_ok=True)  # what nodes only read: it stays ours
    for name in _NODE_FOLDERS:
        folder = path / name
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, user_id, group_id, follow_symlinks=False)
    if token:
        write_secret(path / TOKEN, secrets.token_hex(32), user_id, group_id)


def write_secret(path: Path, text: str, user_id: int, group_id: int) -> None:
    """A file that only its user can read, in a folder that only its user can enter; git is told to leave it out."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(path.parent / ".gitignore", "*\n")
    write_file(path, text, mode=0o600)
    if os.geteuid() == 0:
        for owned in (path.parent, path):
            os.chown(owned, user_id, group_id, follow_symlinks=False)


def write_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a whole file or none: a temporary file beside it, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
