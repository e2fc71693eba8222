"""How does a Ray cluster start? Its head on the master, a node of Ray on every node; the script is a driver of that cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from compose_sim.core.plan.model import TOKEN, PlannedPort, short_folder
from compose_sim.core.plan.node_roles import role_words
from compose_sim.core.plan.recipes import Cluster, driver_commands
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # workers are started by Ray, not by us
RUNS_COMMANDS = False
DRIVEN = True
PACKAGES: Mapping[str, str] = {"ray": "2.52"}  # the first with tokens
EXAMPLE = "templates/examples/ray_rllib.py"
OPTIONS: Mapping[str, str] = {
    "cpus": "CPUs that Ray counts on each node; a node's --cpus, or its share of this machine, when left out",
    "head-cpus": "CPUs that Ray counts on the head: 0 when left out, so that work is done on nodes alone",
    "dashboard": "on or off: the dashboard costs the head about 2 s at its start",
    "ready-timeout": "seconds until Ray must have all nodes: 300 when left out",
}
EXIT_CODES: Mapping[int, str] = {
    90: "Ray is not in the nodes' Python",
    91: "the nodes' Ray is too old",
    92: "not all nodes registered with Ray",
    93: "Ray's head did not start",
}
_DASHBOARD, _CLIENT = 8265, 10001  # as Ray's own documents have them
_PATIENCE_S = 300  # nodes that fail are noticed at once; those that share a busy machine only need time


def launcher(spec: ClusterSpec) -> str:
    """One process a node, Ray's; SpecError where ranks are asked for, which Ray does not have."""
    if "launcher" in spec.model_fields_set:
        raise SpecError(
            f"launcher '{spec.launcher}' starts ranks, and Ray starts its workers itself",
            hint="leave --launcher out, or run a torch.distributed script by the recipe 'ddp'",
        )
    if any((node.nproc_per_node or spec.nproc_per_node) != 1 for node in spec.node_specs):
        raise SpecError(
            "a node of Ray has no ranks: Ray starts as many workers as it has work for",
            hint="leave --nproc-per-node out; composesim up --recipe ray --option cpus=4 … says how many CPUs Ray counts",
        )
    return "command"


def master_command(cluster: Cluster) -> tuple[str, ...]:
    """The head of the run; its driver is Ray's head, and runs the script when all nodes are there."""
    return driver_commands.master_command(cluster, driver_words(cluster))


def node_command(cluster: Cluster) -> tuple[str, ...]:
    """The node's agent, which starts Ray's node as soon as the driver is there."""
    return driver_commands.node_command(cluster, launcher(cluster.spec), member_words(cluster))


def driver_words(cluster: Cluster) -> tuple[str, ...]:
    """The program that starts Ray's head, and its options."""
    spec = cluster.spec
    return (
        *role_words(cluster.folder, "ray-driver"),
        *("--nodes", str(spec.initial_node_count)),
        *("--cpus", str(_whole(spec, "head-cpus", 0))),
        *("--ready-timeout", str(_whole(spec, "ready-timeout", _PATIENCE_S, least=1))),
        *(("--dashboard-port", str(cluster.published["dashboard"])) if _has_dashboard(spec) else ()),
        *("--client-port", str(cluster.published["client"])),
        *_common_words(cluster),
    )


def member_words(cluster: Cluster) -> tuple[str, ...]:
    """What a node runs: with the CPUs and memory of each node of the cluster, in order, of which it takes its own."""
    spec = cluster.spec
    asked = _whole(spec, "cpus", 0, least=1) if "cpus" in spec.options else 0
    cpus = [
        asked or int(max(1, node.cpus or spec.cpus or 0)) * bool(node.cpus or spec.cpus) for node in spec.node_specs
    ]
    memory = [node.memory or spec.memory or 0 for node in spec.node_specs]
    return (
        cluster.python,
        *role_words(cluster.folder, "ray-member"),
        *("--cpus", ",".join(map(str, cpus))),
        *("--memory", ",".join(map(str, memory))),
        *_common_words(cluster),
    )


def environment(cluster: Cluster) -> Mapping[str, str]:
    """Every client must know the run's token, which each reads from a file that only the nodes' user may."""
    found = {"RAY_ADDRESS": f"{cluster.host}:{cluster.store_port}"} if cluster.store_port else {}
    folder = "/tmp" if cluster.contained else short_folder(PurePosixPath(cluster.folder).name)
    return {
        "RAY_TMPDIR": folder,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{cluster.folder}/{TOKEN}",
        "RAY_USAGE_STATS_ENABLED": "0",
        # A node that is told to stop is not wanted any more: Ray would wait 30 s for its work to end.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Ray gives its own processes half a minute to start; on a machine that many nodes share, they may take longer.
        "RAY_agent_register_timeout_ms": f"{_PATIENCE_S}000",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(_PATIENCE_S),
        **found,
    }


def ports(cluster: Cluster) -> tuple[PlannedPort, ...]:
    """The dashboard, and the port of Ray's client for programs of this machine."""
    login = "RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token}"
    client = PlannedPort(name="client", port=_CLIENT, path="", scheme="ray", login=login)
    dashboard = PlannedPort(
        name="dashboard", port=_DASHBOARD, login="it asks for the token {token}", discovery="/api/prometheus/sd"
    )
    return (dashboard, client) if _has_dashboard(cluster.spec) else (client,)


def _common_words(cluster: Cluster) -> tuple[str, ...]:
    """Nodes that share an address take free ports, and their part of the memory of one machine."""
    nodes = ("--share", str(len(cluster.spec.node_specs)))
    return (*("--shm", str(cluster.spec.shm_size)), *nodes, *(() if cluster.contained else ("--free-ports",)))


def _has_dashboard(spec: ClusterSpec) -> bool:
    asked = spec.options.get("dashboard", "on")
    if asked not in ("on", "off"):
        raise SpecError(
            f"option dashboard '{asked}' is neither on nor off", hint="composesim up --option dashboard=off …"
        )
    return asked == "on"


def _whole(spec: ClusterSpec, name: str, otherwise: int, *, least: int = 0) -> int:
    """An option that is a whole number; SpecError where it is none."""
    asked = spec.options.get(name)
    if asked is None:
        return otherwise
    if not asked.isascii() or not asked.isdigit() or int(asked) < least:
        raise SpecError(
            f"option {name} '{asked}' is not a whole number of at least {least}",
            hint=f"composesim up --option {name}={max(least, 2)} …",
        )
    return int(asked)
