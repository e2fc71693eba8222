"""Gather what `doctor` reports about this machine, without changing anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from compose_sim.core.doctor.machine_checks import Machine
from compose_sim.core.host.host import Host
from compose_sim.engine.host.facts import inspect_host
from compose_sim.engine.lifetime.orphans import find_runs
from compose_sim.engine.run_folder.location import runs_folder
from compose_sim.engine.subprocesses import try_output_of


def inspect_machine(folder: Path) -> Machine:
    """Inspect the machine, as seen from a project folder."""
    host = inspect_host(folder, runs=runs_folder(folder))
    crashed = [found for found in find_runs(folder, skip_silent=True) if found.state == "crashed"]
    return Machine(
        host=host,
        python_why=_why_this_python(host),
        bridge=_has_bridges(),
        crashed_runs=tuple(found.run for found in crashed),
        crashed_elsewhere=not all(found.is_in(folder) for found in crashed),
    )


def _why_this_python(host: Host) -> str:
    executable = host.python.executable if host.python else ""
    environment = os.environ.get("VIRTUAL_ENV")
    if environment and executable == f"{environment}/bin/python":
        return "the active virtual environment"
    return "the interpreter of composesim" if executable == sys.executable else "the first on PATH that has torch"


def _has_bridges() -> bool | None:
    """Return whether the kernel supports bridges; None if the driver may be built in, which the kernel does not show."""
    if Path("/sys/module/bridge").exists() or any(Path("/sys/class/net").glob("*/bridge")):
        return True
    status, _ = try_output_of(["modprobe", "--dry-run", "--quiet", "bridge"])
    return {0: True, 1: False}.get(status)
