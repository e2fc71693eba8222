"""Start a Ray cluster: the head on the master and one Ray node per node. The user's script drives the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from compose_sim.core.plan.model import TOKEN, PlannedPort, short_folder
from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.plan.recipes import ClusterLayout, Contents, Framework, driver_commands, refuse_launcher
from compose_sim.core.plan.recipes.options import switch, whole_number
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # Ray starts its workers itself
RUNS_COMMANDS = False
DRIVEN = True
PACKAGES: Mapping[str, str] = {"ray": "2.52"}  # the first with tokens
EXAMPLE = str(PurePosixPath(__file__).parents[1] / "templates" / "examples" / "ray_rllib.py")
IMAGE = Contents(frameworks=(Framework(name="ray", module="ray.rllib"),))
_PATIENCE_S = 300  # failed nodes are noticed at once; nodes on a busy machine only need time
OPTIONS: Mapping[str, str] = {
    "cpus": "CPUs that Ray counts on each node.  [default: --cpus, or the node's share of this machine]",
    "head-cpus": "CPUs that Ray counts on the head.  [default: 0, so that only nodes work]",
    "dashboard": "on or off; the dashboard adds about 2 s to the start.  [default: on]",
    "ready-timeout": f"Seconds to wait for all nodes to register with Ray.  [default: {_PATIENCE_S}]",
}
EXIT_CODES: Mapping[int, str] = {
    90: "Ray is not installed in the nodes' Python",
    91: "the nodes' Ray is too old",
    92: "not all nodes registered with Ray",
    93: "Ray's head did not start",
}
_DASHBOARD, _CLIENT = 8265, 10001  # Ray's defaults


def launcher(spec: ClusterSpec) -> str:
    """Return `command`: a node runs one process of Ray. Raise SpecError if the user asked for ranks."""
    hint = "leave --launcher out, or run a torch.distributed script with the recipe 'ddp'"
    refuse_launcher(spec, "Ray starts its workers itself", hint=hint)
    if any(slots != 1 for slots in driver_commands.slots_of(spec)):
        raise SpecError(
            "Ray nodes have no ranks: Ray starts as many workers as it needs",
            hint="leave --nproc-per-node out; to set how many CPUs Ray counts: composesim up --recipe ray --option cpus=4 …",
        )
    return "command"


def master_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start Ray's head, which runs the script when all nodes have registered."""
    return driver_commands.master_command(cluster, role_command(cluster.folder, "ray-driver", *driver_options(cluster)))


def node_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the node's agent, which starts a Ray node when the head is up, and picks an entry of --cpus and --memory."""
    spec = cluster.spec
    asked = whole_number(spec, "cpus", 0, least=1)
    limits = [node.cpus or spec.cpus for node in spec.node_specs]
    cpus = [asked or (int(max(1, limit)) if limit else 0) for limit in limits]
    memory = [node.memory or spec.memory or 0 for node in spec.node_specs]
    member = (
        cluster.python,
        *role_command(cluster.folder, "ray-member"),
        *("--cpus", ",".join(map(str, cpus))),
        *("--memory", ",".join(map(str, memory))),
        *_common_options(cluster),
    )
    return driver_commands.node_command(cluster, launcher(spec), member)


def driver_options(cluster: ClusterLayout) -> tuple[str, ...]:
    """Return the options of the program that starts Ray's head."""
    spec = cluster.spec
    return (
        *("--nodes", str(spec.initial_node_count)),
        *("--cpus", str(whole_number(spec, "head-cpus", 0))),
        *("--ready-timeout", str(whole_number(spec, "ready-timeout", _PATIENCE_S, least=1))),
        *(("--dashboard-port", str(cluster.published["dashboard"])) if _has_dashboard(spec) else ()),
        *("--client-port", str(cluster.published["client"])),
        *_common_options(cluster),
    )


def environment(cluster: ClusterLayout) -> Mapping[str, str]:
    """Return Ray's variables. Each client reads the run's token from a file that only the nodes' user can read."""
    found = {"RAY_ADDRESS": f"{cluster.host}:{cluster.store_port}"} if cluster.store_port else {}
    folder = "/tmp" if cluster.contained else short_folder(PurePosixPath(cluster.folder).name)
    return {
        "RAY_TMPDIR": folder,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{cluster.folder}/{TOKEN}",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would wait 30 s for the work on a node to end. A node that is stopped is no longer needed.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Ray gives its own processes 30 s to start, which may be too little if many nodes share a machine.
        "RAY_agent_register_timeout_ms": f"{_PATIENCE_S}000",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(_PATIENCE_S),
        **found,
    }


def ports(cluster: ClusterLayout) -> tuple[PlannedPort, ...]:
    """Return the dashboard, and the port to which Ray clients on this machine connect."""
    login = "RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token}"
    client = PlannedPort(name="client", port=_CLIENT, path="", scheme="ray", login=login)
    dashboard = PlannedPort(name="dashboard", port=_DASHBOARD, login="token {token}", discovery="/api/prometheus/sd")
    return (dashboard, client) if _has_dashboard(cluster.spec) else (client,)


def _common_options(cluster: ClusterLayout) -> tuple[str, ...]:
    """Return the options of head and nodes. Nodes that share an address take free ports and a part of the memory."""
    nodes = ("--share", str(len(cluster.spec.node_specs)))
    return (*("--shm", str(cluster.spec.shm_size)), *nodes, *(() if cluster.contained else ("--free-ports",)))


def _has_dashboard(spec: ClusterSpec) -> bool:
    return switch(spec, "dashboard", default=True)
