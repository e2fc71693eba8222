"""What does `doctor` need to know of this machine? Gathered in one place, and nothing is changed by looking."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import psutil

from compose_sim.core.doctor.machine_checks import Machine
from compose_sim.core.host.host import Host
from compose_sim.core.plan.defaults import DEFAULT_IMAGE
from compose_sim.engine.host.facts import inspect_host
from compose_sim.engine.lifetime.orphans import find_leftovers
from compose_sim.engine.subprocesses import try_output_of


def examine(folder: Path) -> Machine:
    """The machine, seen from a project folder."""
    host = inspect_host(folder)
    crashed = (left.run for left in find_leftovers(folder) if left.is_crashed())
    return Machine(
        host=host,
        python_why=_why(host),
        default_image=host.docker.available and _has_image(DEFAULT_IMAGE),
        bridge=_has_bridges(),
        free_memory_bytes=psutil.virtual_memory().available,
        free_disk_bytes=shutil.disk_usage(folder).free,
        leftovers=tuple(crashed),
    )


def _why(host: Host) -> str:
    executable = host.python.executable if host.python else ""
    environment = os.environ.get("VIRTUAL_ENV")
    if environment and executable == f"{environment}/bin/python":
        return "the active virtual environment"
    return "the one that runs composesim" if executable == sys.executable else "the first on PATH that has it"


def _has_image(tag: str) -> bool:
    return try_output_of(["docker", "image", "inspect", "--format", "{{.Id}}", tag])[0] == 0


def _has_bridges() -> bool | None:
    """Whether the kernel shows a bridge or has the module; None where it may have them built in and shows neither."""
    if Path("/sys/module/bridge").exists() or any(Path("/sys/class/net").glob("*/bridge")):
        return True
    status, _ = try_output_of(["modprobe", "--dry-run", "--quiet", "bridge"])
    return {0: True, 1: False}.get(status)
