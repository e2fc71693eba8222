"""Gather what `doctor` reports about this machine, and which faults it supports, without changing anything."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from compose_sim.core.doctor.machine_checks import Machine
from compose_sim.core.faults.kind import FaultKind
from compose_sim.core.host.host import Host
from compose_sim.core.network.node_network import lacking
from compose_sim.engine.docker.network import find_means
from compose_sim.engine.host.docker_facts import docker_facts
from compose_sim.engine.host.facts import inspect_host
from compose_sim.engine.lifetime.orphans import find_runs
from compose_sim.engine.run_folder.folder import runs_folder
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import ComposesimError
from compose_sim.plugins.registry import ENGINES, built_in


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


def why_unsupported(kind: FaultKind, engine: str) -> str:
    """Return why this machine does not support a kind of fault with an engine, or "" if it does."""
    if engine not in kind.engines:
        if engine in built_in(ENGINES):
            return "it needs root on the machines of the cluster"
        return f"nodes of the {engine} engine share with the host what the fault would break"
    if engine != "docker":
        return ""
    return _docker_problem() or _missing_capability(kind.needs)


@cache
def _docker_problem() -> str:
    facts = docker_facts()
    return "" if facts.available else facts.reason


@cache
def _missing_capability(need: str) -> str:
    if not need:
        return ""
    if need == "cpu-quota":
        status, output = try_output_of(["docker", "info", "--format", "{{.CPUCfsQuota}}"])
        return "" if status == 0 and output.strip() == "true" else "the Docker daemon does not support CPU quotas"
    try:
        return lacking(need, find_means())
    except ComposesimError as error:
        return f"the test for it failed: {error.message}"
