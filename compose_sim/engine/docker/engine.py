"""Run nodes as containers, through the docker command, the Compose plugin, and the daemon's socket for what is quick.

A run is found by the labels of containers and network, so every command works from any shell and after any crash.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compose_sim.core.compose.names import container_name, project_name
from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.core.plan.model import CONTAINER_FOLDER, Plan
from compose_sim.core.plan.node_roles import role_command
from compose_sim.engine.docker import actions, daemon, firewall, images, mapped_folders
from compose_sim.engine.docker.exits import ROLE_LABEL, RUN_LABEL, Exits
from compose_sim.engine.protocol import NodeStatus, Progress
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder
from compose_sim.engine.subprocesses import (
    output_of,
    run_on_lines,
    run_on_terminal,
    through_shell,
    try_output_of,
)

if TYPE_CHECKING:
    from compose_sim.core.faults.kind import Action

_FOLDER_LABEL = "composesim.folder"
_CLUSTER_ROLES = ("master", "node")  # helpers and services are not part of the cluster
_ALREADY_GONE = ("no such container", "already in progress")
_REMOVED_AT_ONCE = 50


class DockerEngine:
    """Containers on a bridge network, one per node."""

    name = "docker"

    def __init__(self) -> None:
        """Start nothing yet."""
        self._started_at = time.time()

    def describe(self) -> str:
        """Return the version of the daemon."""
        return f"Docker Engine {daemon.ask('/version')['Version']}"

    def prepare(self, plan: Plan, progress: Progress) -> str:
        """Make or pull the images of nodes and services."""
        return images.ensure_images(plan, progress)

    def image_digest(self, image: str) -> str:
        """Return the image's id."""
        return images.image_id(image)

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """Close this machine to the nodes, and run `docker compose up` for everything that the run begins with, at once."""
        if still_open := firewall.close_host(plan, live=_runs_with_networks() if plan.closes_host else ()):
            folder.append_event("note", message=still_open)
        for problem in mapped_folders.mount_folders(plan, folder):
            folder.append_event("note", message=problem)
        self._started_at = time.time()
        nodes = [node.name for node in plan.initial_nodes]
        names = ("master", *nodes, *(service.name for service in plan.services))
        actions.compose_up(plan, folder, () if len(nodes) == len(plan.nodes) else names)

    def exits(self, plan: Plan) -> Iterator[NodeStatus]:
        """Follow the daemon's event stream from the start of the run, so that no exit is missed."""
        return Exits(plan, lambda: self.statuses(plan.run), since=self._started_at).follow()

    def statuses(self, run: str | None = None) -> tuple[NodeStatus, ...]:
        """Return what the daemon knows about each labeled container, the master first, then by node number."""
        found = _containers(f"{RUN_LABEL}={run}" if run else RUN_LABEL)
        statuses = [_status(container) for container in actions.inspect([each["Id"] for each in found])]
        statuses = [status for status in statuses if status.role in _CLUSTER_ROLES]
        return tuple(sorted(statuses, key=lambda each: (each.run, each.role == "node", len(each.node), each.node)))

    def perform(self, plan: Plan, folder: RunFolder, act: Action) -> None:
        """Perform the act with one docker command."""
        actions.perform(plan, folder, act, container_name(plan.run, act.node))

    def addresses(self, plan: Plan) -> Mapping[str, str]:
        """Return the address of each container in the run's network."""
        return actions.addresses([each for each, role in _roles(plan.run).items() if role in _CLUSTER_ROLES])

    def stop(self, run: str, *, grace_s: float) -> None:
        """Run `docker stop`: SIGTERM to every node at once, SIGKILL after the grace period. Services keep running until `remove`."""
        _stop([each for each, role in _roles(run).items() if role != "service"], grace_s=grace_s)

    def remove(self, run: str) -> None:
        """Remove containers first, in parallel, then the network that they hold."""
        networks = {each["Id"]: each["Internal"] for each in daemon.labeled("networks", f"{RUN_LABEL}={run}")}
        roles = _roles(run)
        # MPS releases the GPU properly if it can exit by itself, after its clients, before it is killed.
        _stop([each for each, role in roles.items() if role == MPS_NAME], grace_s=6)
        with ThreadPoolExecutor(max_workers=_REMOVED_AT_ONCE) as pool:
            list(pool.map(_remove_container, roles))
        was_there = mapped_folders.unmount_folders(run) or bool(roles)
        try:
            if False in networks.values() or (was_there and not networks):  # a user may have removed the network
                firewall.open_host(run)
        finally:  # rules without a network are removed by the next run
            for network in networks:
                daemon.ask(f"/networks/{network}", method="DELETE", ignore=[daemon.NOT_FOUND])

    def execute(self, run: str, node: str, argv: Sequence[str], write: Callable[[str], None] | None = None) -> int:
        """Run `docker exec`, with a terminal if there is one and nothing else gets the output."""
        container = container_name(run, node)
        python = output_of(["docker", "inspect", "--format", "{{index .Config.Cmd 0}}", container]).strip()
        role = role_command(CONTAINER_FOLDER, "command", *through_shell(node, argv))
        words = [container, python, "-I", "-S", *role]
        if write:
            return run_on_lines(["docker", "exec", *words], write)
        flags = ["--interactive", *(["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else [])]
        return run_on_terminal(["docker", "exec", *flags, *words])

    def output(self, run: str, node: str, *, lines: int = 20) -> str:
        """Return the end of `docker logs`."""
        return try_output_of(["docker", "logs", "--tail", str(lines), container_name(run, node)])[1]

    def remaining_runs(self) -> Mapping[str, str]:
        """Return the runs that still have a container, a network or a mount."""
        folders = mapped_folders.runs_with_mounts()
        for each in (*daemon.labeled("networks", RUN_LABEL), *_containers(RUN_LABEL)):
            run, folder = each["Labels"][RUN_LABEL], each["Labels"].get(_FOLDER_LABEL)
            folders[run] = folder or folders.get(run, "")  # a helper in a node's network has no folder
        return dict(sorted(folders.items()))

    def forget_absent_runs(self, over: str = "") -> None:
        """Remove the firewall rules and the mounts of runs whose networks have been removed; of the run `over`, also new ones."""
        live = _runs_with_networks()
        firewall.open_host(over, live=live)
        for run in mapped_folders.unmount_absent(live):
            firewall.open_host(run)  # its rules may be too new for the above

    def problem(self) -> str:
        """Return that the daemon does not respond, if so."""
        return "" if daemon.responds() else daemon.away()


def _runs_with_networks() -> list[str]:
    return [each["Labels"][RUN_LABEL] for each in daemon.labeled("networks", RUN_LABEL)]


def _roles(run: str) -> dict[str, str]:
    """Return the role of each container of a run, by container id."""
    return {each["Id"]: each["Labels"].get(ROLE_LABEL, "") for each in _containers(f"{RUN_LABEL}={run}")}


def _containers(label: str) -> list[dict[str, Any]]:
    """Return the containers that composesim has started: an image that was made from a node has the labels of the node."""
    found = daemon.labeled("containers/json", label)
    return [each for each in found if _has_started(each)]


def _has_started(container: Mapping[str, Any]) -> bool:
    """Return whether the container has a name that Compose gives it for us, or is of a folder that `render` wrote."""
    project, folder = f"/{project_name(container['Labels'][RUN_LABEL])}", container["Labels"].get(_FOLDER_LABEL)
    is_named = any(name.startswith((f"{project}-", f"{project}_")) for name in container["Names"] or ())
    return is_named or bool(folder and not is_run_folder(Path(folder)))


def _status(container: dict[str, Any]) -> NodeStatus:
    labels, state = container["Config"]["Labels"], container["State"]
    role = labels.get(ROLE_LABEL, "")
    running = bool(state["Running"])
    return NodeStatus(
        run=labels[RUN_LABEL],
        node=labels.get("composesim.node", role),
        role=role,
        running=running,
        exit_code=None if running or state["Status"] == "created" else state["ExitCode"],
        oom_killed=bool(state.get("OOMKilled")),
        paused=bool(state.get("Paused")),
        ranks=labels.get("composesim.ranks", ""),
        folder=labels.get(_FOLDER_LABEL, ""),
        since=state.get("StartedAt", ""),
        handle=container["Id"],
    )


def _stop(containers: Sequence[str], *, grace_s: float) -> None:
    """Send SIGTERM to all at once, and SIGKILL after the grace period; ignore what another process removes at the same time."""
    if containers:
        words = ("stop", "--time", str(max(0, round(grace_s))), *containers)
        actions.run_docker(*words, ignore=_ALREADY_GONE, hint="composesim prune")


def _remove_container(container: str) -> None:
    """Kill and remove a container, unless another process does that."""
    ignored = (daemon.NOT_FOUND, daemon.UNDER_WAY)
    daemon.ask(f"/containers/{container}", method="DELETE", ignore=ignored, force="true", v="true")
