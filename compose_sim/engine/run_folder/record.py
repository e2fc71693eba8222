"""What does a run's folder tell of the run? Its last state, its report even after a crash, and the moment it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.report import make_report
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import ClusterState
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder, runs_folder
from compose_sim.errors import SpecError


def read_state(folder: RunFolder, *, metrics: bool = True) -> tuple[Plan, ClusterState]:
    """The plan of a run and where it stands, from its files alone; without `metrics` the logs are not read."""
    plan = folder.read_plan()
    tail = EventTail(folder.path, logs=metrics)
    events = tail.finish()
    tail.close()
    return plan, fold_all(plan, _in_order(events))


def report_of(folder: RunFolder) -> dict[str, Any]:
    """The report that the run left, or one made from its plan and events where it was killed before it could."""
    report = folder.read_report()
    if report is None:
        plan, state = read_state(folder)
        report = make_report(plan, state, host={})
    return report


def finished_runs(project: Path) -> Iterator[RunFolder]:
    """The runs of a project folder that nobody is running any more, the latest first."""
    plans = sorted(runs_folder(project).glob("*/plan.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for plan in plans:
        folder = RunFolder(plan.parent)
        if not folder.is_claimed():
            yield folder


def end_of(folder: RunFolder) -> threading.Event:
    """An event that is set once no process is running this run; set already where none is."""
    over = threading.Event()
    try:
        lock = os.open(folder.path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        over.set()
        return over
    except PermissionError as error:
        raise SpecError(
            f"the run '{folder.name}' is another user's: {error.strerror} for '{error.filename}'", hint="composesim ps"
        ) from None
    threading.Thread(target=_wait_for_lock, args=(lock, over), daemon=True).start()
    return over


def delete(folder: RunFolder) -> None:
    """Remove a run's folder and all that is in it; SpecError where it is not one, or a process is running the run."""
    path = folder.path
    is_run = any((path / name).is_file() for name in ("lock", "plan.json"))
    if not (is_run_folder(path) and path.is_dir() and is_run) or path.is_symlink():
        raise SpecError(f"'{path}' is not the folder of a run: it stays", hint="composesim ps --all")
    if folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is under way: its folder stays", hint="composesim ps")
    folder.claim()  # so that no run of this name begins meanwhile
    try:
        shutil.rmtree(path)
    finally:
        folder.release()


def _wait_for_lock(lock: int, over: threading.Event) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)  # shared, so that those who wait do not wait for one another
    finally:
        os.close(lock)
    over.set()


def _in_order(events: list[Event]) -> list[Event]:
    """By time; lines of logs have none of their own, and come when the last event did."""
    last = max((event.t for event in events if event.kind not in ("log", "metric")), default=0.0)
    stamped = (replace(event, t=last) if event.kind == "metric" else event for event in events if event.kind != "log")
    return sorted(stamped, key=lambda event: event.t)
