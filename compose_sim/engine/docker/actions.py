"""What is done to one container of a run that is under way? One docker command an act."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence

from compose_sim.core.compose.document import project_name
from compose_sim.core.faults import Act, LimitCpus, Pause, Signal, Start
from compose_sim.core.plan.model import Plan
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.subprocesses import output_of, run_bound, try_output_of
from compose_sim.errors import CommandError, EngineError

# kill(-1) reaches all processes of the container at once but its init, which only hands signals on, and the caller.
_SIGNAL_ALL = "import os, sys; os.kill(-1, int(sys.argv[1]))"
_FREEZES_WITHIN_S = 10.0


def perform(plan: Plan, folder: RunFolder, act: Act, container: str) -> None:
    """Do it to its container; EngineError where that fails."""
    if isinstance(act, Start):
        _start(plan, folder, act.node, container)
    elif isinstance(act, Pause):
        _hold(container) if act.on else _tolerating(["docker", "unpause", container], "is not paused")
    elif isinstance(act, LimitCpus):
        _docker("update", "--cpus", str(act.cpus if act.cpus is not None else _planned_cpus(plan, act.node)), container)
    elif isinstance(act, Signal) and act.name in ("STOP", "CONT"):
        number = str(int(signal.Signals[f"SIG{act.name}"]))
        _docker("exec", container, plan.python, "-I", "-S", "-c", _SIGNAL_ALL, number)
    elif isinstance(act, Signal):
        _tolerating(["docker", "kill", "--signal", act.name, container], "is not running")
    else:
        raise EngineError(f"the docker engine does not know how to do {act!r}")


def compose_up(plan: Plan, folder: RunFolder, services: Sequence[str]) -> None:
    """`docker compose up` of these services, of all where none is named; returns when they have been started."""
    argv = ["docker", "compose", "--project-directory", str(folder.path), "--file", str(folder.document)]
    argv += ["--env-file", str(folder.path / ".env"), "--project-name", project_name(plan.run)]
    # What the caller's shell happens to export must not win over the settings beside the file.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSESIM_")}
    run_bound([*argv, "--progress", "plain", "up", "--detach", "--no-build", *services], env=environment)


def addresses(ids: Sequence[str]) -> Mapping[str, str]:
    """IPv4 address of each of these containers that has one, by node; the master's under `master`."""
    if not ids:
        return {}
    containers = json.JSONDecoder().raw_decode(try_output_of(["docker", "inspect", *ids])[1].lstrip() or "[]")[0]
    found = {}
    for container in containers:
        labels = container["Config"]["Labels"]
        for network in container["NetworkSettings"]["Networks"].values():
            if network["IPAddress"]:
                found[labels.get("composesim.node", "master")] = str(network["IPAddress"])
    return found


def _start(plan: Plan, folder: RunFolder, node: str, container: str) -> None:
    """Again, with all that the container was made with; for the first time, as all were."""
    argv = ["docker", "start", container]
    status, output = try_output_of(argv)
    if status and "No such container" in output:
        compose_up(plan, folder, [node])
    elif status:
        raise CommandError(argv, status, output, hint="composesim doctor")


def _hold(container: str) -> None:
    """`docker pause`, which gives up on a busy machine before the last process stands still: what it froze, it has let go again."""
    deadline = time.monotonic() + _FREEZES_WITHIN_S
    while True:
        try:
            return _tolerating(["docker", "pause", container], "already paused")
        except CommandError as error:
            if "unable to freeze" not in error.output or time.monotonic() > deadline:
                raise


def _planned_cpus(plan: Plan, node: str) -> float:
    """What the node may use by its plan; Docker gives no limit back but all there is."""
    planned = next(each.cpus for each in plan.nodes if each.name == node)
    return planned or float(output_of(["docker", "info", "--format", "{{.NCPU}}"]))


def _docker(*words: str) -> None:
    _tolerating(["docker", *words])


def _tolerating(argv: Sequence[str], *harmless: str) -> None:
    status, output = try_output_of(argv)
    if status and not any(words in output for words in harmless):
        raise CommandError(argv, status, output, hint="composesim doctor")
