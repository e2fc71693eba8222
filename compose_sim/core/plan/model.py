"""What is a plan? All that an engine needs to know of a run: nodes, ranks, commands, environment. `planning.py` makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Annotated, Any

from compose_sim.core.plan.gpus.binding import Bound, bound_from_dict

CONTAINER_FOLDER = "/composesim"  # the run's folder as containers see it
TOKEN = "secrets/token"  # in the run's folder, where there is one: readable to the nodes' user alone
HOSTED = "hosted"  # the launcher of nodes that others start ranks on, by ssh
NOBODY = 65534
WORKSPACE = "/workspace"  # where the copied code of a rendered document lies


def short_folder(run: str) -> str:
    """
    Where processes of one machine keep their sockets, whose paths the kernel cuts off at 107 characters.

    The local engine removes it with the run.
    """
    return f"/tmp/composesim-{sha256(run.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One decision, in words: `engine docker: Docker Engine 26.1.5 answers`."""

    what: Annotated[str, "What was chosen, such as `engine`"]
    value: Annotated[str, "The chosen value"]
    why: Annotated[str, "The reason for the choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of this machine that every node sees."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What every rank runs, as the person named it."""

    target: str  # a path, or a module name
    is_module: bool = False
    is_command: bool = False  # found as a shell would find it, and run as it is
    arguments: tuple[str, ...] = ()
    folder: str  # the nodes' working directory
    mounts: tuple[Mount, ...] = ()  # what nodes must see of the person's files: the working directory first


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """One node: its place in the cluster, its limits, and what it is told."""

    name: str
    node_rank: int
    first_rank: int
    nproc: int
    cpus: float | None
    memory_bytes: int | None
    environment: Mapping[str, str]  # what differs from node to node
    command: tuple[str, ...]
    gpus: Bound | None = None  # of this machine's; None where the node gets none
    joins_mps: bool = False  # whether its ranks are clients of the run's MPS

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks on this node in the first round."""
        return tuple(range(self.first_rank, self.first_rank + self.nproc))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPort:
    """A port of a service that is published on this machine, on 127.0.0.1 only, and what opens there."""

    name: str  # "dashboard"
    port: int  # within the service
    host_port: int = 0  # 0: not chosen yet; `port`, where that is free
    path: str = "/"  # of the link; {token} stands for the run's token
    scheme: str = "http"
    login: str = ""  # what whoever opens it is to type there, with {token}
    discovery: str = ""  # a path behind the port at which Prometheus is told whom else to ask for metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMaster:
    """The service that holds the rendezvous. Port 0 means that any free port will do."""

    name: str
    port: int
    store_port: int
    command: tuple[str, ...]
    ports: tuple[PlannedPort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMps:
    """The service that lets ranks of several nodes compute on one GPU at once; nodes join its IPC namespace."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: Bound
    shm_bytes: int  # of /dev/shm, which it has in common with the nodes that join it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedService:
    """A container beside the nodes, which is none of them: a notebook, TensorBoard. The run does not wait for it."""

    name: str
    image: str = ""  # a tag; "" is the nodes' image
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # beside the nodes', where it has their image
    mounts: tuple[Mount, ...] = ()
    files: Mapping[str, str] = field(
        default_factory=dict
    )  # name below the run's `services` -> the template it is made from
    ports: tuple[PlannedPort, ...] = ()
    network_of: str = ""  # the service whose network it shares, its loopback included; "" for one of its own
    packages: tuple[str, ...] = ()  # distributions that must be in the nodes' image


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that an engine needs to know; equal specs on equal hosts give equal plans."""

    run: str
    engine: str
    recipe: str
    image: str  # an image tag, or "host"
    python: str
    launcher: str
    backend: str
    world_size: int
    folder: str  # the run's folder as nodes see it
    working_directory: str
    program: str  # what runs, as one line to read
    user: str  # uid:gid
    user_name: str
    shm_bytes: int
    subnet: str | None
    timeout_s: float | None
    hang_timeout_s: float | None = None  # how long nothing may move before the run is stopped
    stall_s: float = 15.0  # how long before somebody is told
    keep: bool
    max_restarts: int
    elastic: tuple[int, int] | None = None  # (least, most) nodes; None: all of them, always
    initial_node_count: int  # the run starts with this many of `nodes`; `scale` may start the others
    links: tuple[str, ...] = ()  # shapes as `--link` takes them
    scratch_bytes: int | None = None
    master: PlannedMaster
    mps: PlannedMps | None = None
    services: tuple[PlannedService, ...] = ()
    is_driven: bool = False  # one program on the master drives the nodes, and its exit code is the run's
    has_token: bool = False  # the run has a secret of its own: the file TOKEN, seen by whom it concerns
    exit_codes: Mapping[str, str] = field(default_factory=dict)  # what an exit code of the framework's programs means
    nodes: tuple[PlannedNode, ...]
    environment: Mapping[str, str]  # what all nodes have in common
    mounts: tuple[Mount, ...]
    choices: tuple[Choice, ...] = field(default=())

    @property
    def initial_nodes(self) -> tuple[PlannedNode, ...]:
        """Return the nodes that the run starts with."""
        return self.nodes[: self.initial_node_count]

    @property
    def published(self) -> tuple[PlannedPort, ...]:
        """All that is open to this machine."""
        return (*self.master.ports, *(port for service in self.services for port in service.ports))

    @property
    def user_ids(self) -> tuple[int, int]:
        """The user and the group that nodes run as."""
        user, _, group = self.user.partition(":")
        return int(user), int(group)

    @property
    def brings_users(self) -> bool:
        """Whether nodes are given the names of users: ssh asks for them, and this machine's own files have none."""
        return self.image == "host" or self.launcher == HOSTED

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)


def portable_program(program: Program) -> Program:
    """The same program, its files copied into the folder of a rendered document: `./code` there, `/workspace` on nodes."""
    mounts = (Mount(source="./code", target=WORKSPACE),)
    target = program.target if program.is_module or program.is_command else copied_name(program)
    return replace(program, target=target, folder=WORKSPACE, mounts=mounts)


def copied_name(program: Program) -> str:
    """The script's name below the copied code: below the project, or alone where it lies outside of it."""
    path = PurePosixPath(normpath(PurePosixPath(program.folder) / program.target))
    inside = path.is_relative_to(program.folder)
    return str(path.relative_to(program.folder)) if inside else path.name


def plan_from_dict(values: Mapping[str, Any]) -> Plan:
    """The plan that `to_dict` made these values from; KeyError or TypeError where they are not one's."""
    nodes = tuple(
        PlannedNode(**{**node, "command": tuple(node["command"]), "gpus": bound_from_dict(node["gpus"])})
        for node in values["nodes"]
    )
    of_master = values["master"]
    ports = _ports(of_master["ports"])
    master = PlannedMaster(**{**of_master, "command": tuple(of_master["command"]), "ports": ports})
    mounts = tuple(Mount(**mount) for mount in values["mounts"])
    choices = tuple(Choice(**choice) for choice in values["choices"])
    links, elastic = tuple(values["links"]), tuple(values["elastic"]) if values["elastic"] else None
    made = {"nodes": nodes, "master": master, "mounts": mounts, "choices": choices, "links": links, "elastic": elastic}
    made["mps"] = _mps_from_dict(values["mps"])
    made["services"] = tuple(map(_service_from_dict, values["services"]))
    return Plan(**{**values, **made})


def _ports(values: Iterable[Mapping[str, Any]]) -> tuple[PlannedPort, ...]:
    return tuple(PlannedPort(**port) for port in values)


def _service_from_dict(values: Mapping[str, Any]) -> PlannedService:
    made = {name: tuple(values[name]) for name in ("command", "packages")}
    mounts = tuple(Mount(**mount) for mount in values["mounts"])
    return PlannedService(**{**values, **made, "mounts": mounts, "ports": _ports(values["ports"])})


def _mps_from_dict(values: Mapping[str, Any] | None) -> PlannedMps | None:
    gpus = bound_from_dict(values["gpus"]) if values else None
    return PlannedMps(**{**values, "command": tuple(values["command"]), "gpus": gpus}) if values and gpus else None
