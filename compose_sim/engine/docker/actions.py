"""Perform acts on the container of one node, and start containers, with the docker command."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compose_sim.core.compose.names import project_name
from compose_sim.core.plan.model import Plan
from compose_sim.engine.docker import daemon
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.subprocesses import output_of, run_bound, try_output_of
from compose_sim.errors import CommandError, EngineError

if TYPE_CHECKING:
    from compose_sim.core.faults.kind import Action

# kill(-1) reaches all processes of the container at once, except the caller and the init, which only forwards signals.
_SIGNAL_ALL = "import os, sys; os.kill(-1, int(sys.argv[1]))"
_PAUSES_WITHIN_S = 10.0


def run_docker(*arguments: str, ignore: Sequence[str] = (), hint: str = "composesim doctor") -> None:
    """Run a docker command; raise CommandError for an error, in lower case, that matches none of the expressions in `ignore`."""
    argv = ["docker", *arguments]
    status, output = try_output_of(argv)
    lines = output.splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines
    if status and (not errors or any(not any(re.search(each, line.lower()) for each in ignore) for line in errors)):
        raise CommandError(argv, status, output, hint=hint)


def perform(plan: Plan, folder: RunFolder, act: Action, container: str) -> None:
    """Perform the act on the container; raise EngineError if that fails."""
    from compose_sim.core.faults.kind import LimitCpus, Pause, Signal, Start

    if isinstance(act, Start):
        _start(plan, folder, act.node, container)
    elif isinstance(act, Pause):
        _pause(container) if act.on else run_docker("unpause", container, ignore=["is not paused"])
    elif isinstance(act, LimitCpus):
        planned = next(node.cpus for node in plan.nodes if node.name == act.node)
        # Docker cannot remove a limit: without a planned one, it is the number of CPUs.
        cpus = act.cpus or planned or output_of(["docker", "info", "--format", "{{.NCPU}}"]).strip()
        run_docker("update", "--cpus", str(cpus), container)
    elif isinstance(act, Signal) and act.name in ("STOP", "CONT"):
        number = str(int(signal.Signals[f"SIG{act.name}"]))
        run_docker("exec", container, plan.python, "-I", "-S", "-c", _SIGNAL_ALL, number)
    elif isinstance(act, Signal):
        run_docker("kill", "--signal", act.name, container, ignore=["is not running", "can only kill running"])
    else:
        raise EngineError(f"the docker engine cannot perform {act!r}")


def compose_up(plan: Plan, folder: RunFolder, services: Sequence[str]) -> None:
    """Run `docker compose up` for these services, or for all if none is named; return when they have been started."""
    path, name = folder.path, project_name(plan.run)
    argv = ["docker", "compose", "--project-directory", str(path), "--file", str(path / "docker-compose.yml")]
    argv += ["--env-file", str(path / ".env"), "--project-name", name]
    # Variables exported in the caller's shell must not override the settings in the run's .env.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSESIM_")}
    run_bound([*argv, "--progress", "plain", "up", "--detach", "--no-build", *services], env=environment)


def addresses(ids: Sequence[str]) -> Mapping[str, str]:
    """Return the IPv4 address of each of these containers that has one, by node; the master's as `master`."""
    found = {}
    for container in inspect(ids):
        labels = container["Config"]["Labels"]
        for network in container["NetworkSettings"]["Networks"].values():
            if network["IPAddress"]:
                found[labels.get("composesim.node", "master")] = str(network["IPAddress"])
    return found


def inspect(ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the daemon knows about these containers, without those removed in the meantime."""
    found = (daemon.ask(f"/containers/{each}/json", ignore=[daemon.NOT_FOUND]) for each in ids)
    return [container for container in found if container]


def _start(plan: Plan, folder: RunFolder, node: str, container: str) -> None:
    """Restart the container as it was created; create it first if it never ran."""
    argv = ["docker", "start", container]
    status, output = try_output_of(argv)
    if status and "no such container" in output.lower():
        compose_up(plan, folder, [node])
    elif status:
        raise CommandError(argv, status, output, hint="composesim doctor")


def _pause(container: str) -> None:
    """Run `docker pause` until it works: on a busy machine it gives up, and resumes everything, before all processes are frozen."""
    deadline = time.monotonic() + _PAUSES_WITHIN_S
    while True:
        try:
            return run_docker("pause", container, ignore=["already paused"])
        except CommandError as error:
            if "unable to freeze" not in error.output or time.monotonic() > deadline:
                raise
