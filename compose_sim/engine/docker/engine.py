"""How are nodes executed as containers? Through the docker command and its Compose plugin, which share one endpoint.

The run is found by its labels, so every verb works from any shell and after any crash.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compose_sim.core.compose.document import project_name
from compose_sim.core.faults import Act
from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.core.plan.model import Plan
from compose_sim.engine.docker import actions, images
from compose_sim.engine.protocol import NodeStatus, Progress
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.subprocesses import lines_of, on_terminal, output_of, try_output_of
from compose_sim.errors import CommandError, EngineError

_RUN_LABEL, _ROLE_LABEL = "composesim.run", "composesim.role"
_ROLES = ("master", "node")  # a helper is no part of the cluster, and neither is a service
_SERVICE_LABEL = "composesim.service"


class DockerEngine:
    """Containers on a bridge network, one a node."""

    name = "docker"

    def __init__(self) -> None:
        """Started nothing yet."""
        self._started_at = time.time()

    def describe(self) -> str:
        """The engine's version, as the daemon tells it."""
        return f"Docker Engine {output_of(['docker', 'version', '--format', '{{.Server.Version}}']).strip()}"

    def prepare(self, plan: Plan, progress: Progress) -> str:
        """The tag to run, made or pulled where it is not here yet; and the images of services."""
        return images.ensure(plan, progress)

    def image_digest(self, image: str) -> str:
        """The image's id."""
        status, output = try_output_of(["docker", "image", "inspect", "--format", "{{.Id}}", image])
        return output.strip() if status == 0 else ""

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """`docker compose up`, all services of the beginning at once."""
        self._started_at = time.time()
        nodes = [node.name for node in plan.initial_nodes]
        names = ("master", *nodes, *(service.name for service in plan.services))
        actions.compose_up(plan, folder, () if len(nodes) == len(plan.nodes) else names)

    def stopped(self, plan: Plan) -> Iterator[NodeStatus]:
        """Deaths from the daemon's own event stream, from the start of the run on, so that none is missed."""
        argv = ["docker", "events", "--since", f"{self._started_at:.3f}", "--format", "{{json .}}"]
        argv += ["--filter", f"label={_RUN_LABEL}={plan.run}"]
        argv += [word for event in ("start", "die", "oom", "destroy") for word in ("--filter", f"event={event}")]
        names = {"master", *(node.name for node in plan.nodes)}
        services = {service.name for service in plan.services}
        running = {"master", *(node.name for node in plan.initial_nodes)}
        out_of_memory: set[str] = set()
        events, lines = lines_of(argv)
        try:
            # The daemon replays its last 256 events only: a large cluster may have lost nodes before these.
            statuses, listed = self.statuses(plan.run), set()
            listed_at = time.time()  # not before they were listed: one that died meanwhile would be told twice
            for status in statuses:
                if not status.running and status.exit_code is not None:
                    running.discard(status.node)
                    listed.add(status.node)
                    yield status
            for line in lines if running else ():
                fields = _json_or_none(line)
                if fields is None:
                    raise EngineError(f"docker events said: {line.strip()}", hint="composesim doctor")
                attributes = fields["Actor"]["Attributes"]
                name = attributes.get("composesim.node") or attributes.get("composesim.role", "")
                action = fields["Action"]
                if (service := attributes.get(_SERVICE_LABEL)) in services and action == "die":
                    yield _died(plan, str(service), attributes, out_of_memory)
                if name not in names:
                    continue  # a helper's end is nobody's news
                if action == "start":
                    running.add(name)
                    out_of_memory.discard(name)
                elif action == "oom":
                    out_of_memory.add(name)
                elif action == "die":
                    running.discard(name)
                    if name not in listed or fields["timeNano"] / 1e9 > listed_at:
                        yield _died(plan, name, attributes, out_of_memory)
                if not running:
                    return
            if not running:
                return
            raise EngineError("docker events ended while nodes were running", hint="composesim doctor")
        finally:
            events.kill()
            events.communicate()

    def statuses(self, run: str | None = None) -> tuple[NodeStatus, ...]:
        """What `docker inspect` says of each labelled container, the master first, then by node number."""
        ids = _ids(run)
        if not ids:
            return ()
        status, output = try_output_of(["docker", "inspect", "--type", "container", *ids])
        if status and not output.lstrip().startswith("["):
            raise CommandError(["docker", "inspect"], status, output, hint="composesim doctor")
        # A container removed since it was listed leaves a line of complaint behind the JSON.
        containers = json.JSONDecoder().raw_decode(output.lstrip())[0]
        statuses = [
            _status(container) for container in containers if container["Config"]["Labels"].get(_ROLE_LABEL) in _ROLES
        ]
        return tuple(sorted(statuses, key=lambda each: (each.run, each.role == "node", len(each.node), each.node)))

    def perform(self, plan: Plan, folder: RunFolder, act: Act) -> None:
        """One docker command."""
        actions.perform(plan, folder, act, _container(plan.run, act.node))

    def addresses(self, plan: Plan) -> Mapping[str, str]:
        """What `docker inspect` says of each container's place in the run's network."""
        return actions.addresses([each for each, role in _roles(plan.run).items() if role in _ROLES])

    def stop(self, run: str, *, grace_s: float) -> None:
        """`docker stop`: SIGTERM to every node at once, SIGKILL after the grace. Services stay until all is removed."""
        ids = [each for each, role in _roles(run).items() if role != "service"]
        if ids:
            _tolerating_absence(["docker", "stop", "--time", str(max(0, round(grace_s))), *ids])

    def remove(self, run: str) -> None:
        """Containers first, in parallel, then the network that they hold."""
        serving = _ids(run, f"{_ROLE_LABEL}={MPS_NAME}")
        if serving:  # lets go of the GPU in order, now that its clients are gone
            _tolerating_absence(["docker", "stop", "--time", "6", *serving])
        ids = _ids(run)
        if ids:
            _tolerating_absence(["docker", "rm", "--force", "--volumes", *ids])
        networks = output_of(["docker", "network", "ls", "--quiet", "--filter", f"label={_RUN_LABEL}={run}"]).split()
        if networks:
            _tolerating_absence(["docker", "network", "rm", *networks])

    def execute(self, run: str, node: str, argv: Sequence[str]) -> int:
        """`docker exec`, with a terminal where we have one."""
        flags = ["--interactive", *(["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else [])]
        return on_terminal(["docker", "exec", *flags, _container(run, node), *argv])

    def output(self, run: str, node: str, *, lines: int = 20) -> str:
        """`docker logs`."""
        return try_output_of(["docker", "logs", "--tail", str(lines), _container(run, node)])[1]

    def runs_left(self) -> tuple[str, ...]:
        """Runs of which a container or a network is left."""
        label = f'{{{{.Label "{_RUN_LABEL}"}}}}'
        containers = output_of(["docker", "ps", "--all", "--filter", f"label={_RUN_LABEL}", "--format", label])
        networks = output_of(["docker", "network", "ls", "--filter", f"label={_RUN_LABEL}", "--format", label])
        return tuple(sorted({*containers.split(), *networks.split()}))


def _ids(run: str | None, *labels: str) -> list[str]:
    wanted = [f"{_RUN_LABEL}={run}" if run else _RUN_LABEL, *labels]
    filters = [word for label in wanted for word in ("--filter", f"label={label}")]
    return output_of(["docker", "ps", "--all", "--quiet", "--no-trunc", *filters]).split()


def _roles(run: str) -> dict[str, str]:
    """The role of each container of a run, by its id."""
    form = f'{{{{.ID}}}} {{{{.Label "{_ROLE_LABEL}"}}}}'
    argv = ["docker", "ps", "--all", "--no-trunc", "--format", form, "--filter", f"label={_RUN_LABEL}={run}"]
    lines = (line.partition(" ") for line in output_of(argv).splitlines())
    return {container: role for container, _, role in lines}


def _container(run: str, node: str) -> str:
    return f"{project_name(run)}-{node}-1"


def _status(container: dict[str, Any]) -> NodeStatus:
    labels, state = container["Config"]["Labels"], container["State"]
    role = labels.get("composesim.role", "node")
    running = bool(state["Running"])
    return NodeStatus(
        run=labels[_RUN_LABEL],
        node=labels.get("composesim.node", role),
        role=role,
        running=running,
        exit_code=None if running or state["Status"] == "created" else state["ExitCode"],
        oom_killed=bool(state.get("OOMKilled")),
        paused=bool(state.get("Paused")),
        ranks=labels.get("composesim.ranks", ""),
        folder=labels.get("composesim.folder", ""),
        since=state.get("StartedAt", ""),
        handle=container["Id"],
    )


def _died(plan: Plan, name: str, attributes: dict[str, str], out_of_memory: set[str]) -> NodeStatus:
    return NodeStatus(
        run=plan.run,
        node=name,
        role=attributes.get(_ROLE_LABEL, "node"),
        running=False,
        exit_code=int(attributes.get("exitCode", "0")),
        oom_killed=name in out_of_memory,
    )


def _tolerating_absence(argv: Sequence[str]) -> None:
    """Run a removal; what another process removed first is no failure."""
    status, output = try_output_of(argv)
    complaints = [line for line in output.splitlines() if "Error" in line or "error" in line]
    serious = [
        line
        for line in complaints
        if "No such" not in line and "not found" not in line and "already in progress" not in line
    ]
    if status and serious:
        raise CommandError(argv, status, "\n".join(serious), hint="composesim prune")


def _json_or_none(line: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) and "Actor" in fields else None
