"""Choose where the runs of a project are kept: in the project, unless the user says otherwise or it cannot be written."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from compose_sim.core.plan.model import HIDDEN, Choice
from compose_sim.engine.project_owner import check_project

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
