"""Define the plan of a run: all that an engine needs to know about nodes, commands and environment, and select nodes and ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Annotated, Any

from compose_sim.core.json_values import from_json
from compose_sim.core.plan.gpus.assignment import Bound
from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.errors import SpecError

CONTAINER_FOLDER = "/composesim"  # the run's folder in containers
CONTAINER_HOME = "/home/node"
NODE_HASHES = "COMPOSESIM_NODE_HASHES"  # if set, each node has a seed of its own for Python's hashes
FIRST_NODE = "%first-node%"  # on a cluster, in place of the master's address, which is known once the job runs
HIDDEN = ".composesim"  # in a project; it holds the folders of runs, `runs/RUN`
DRIVER = "driver"  # the name of the driver in events and logs
NODES = "nodes"  # in the run's folder; with containers, it holds folders that only one node can write, `NODE/KIND`
KINDS = ("events", "logs", "observations", "debug")  # of files that a node writes
TOKEN = "secrets/token"  # in the run's folder, if the run has a token; only the nodes' user can read it
HOSTED = "hosted"  # the launcher of nodes on which another program starts the ranks, by ssh
NOBODY = 65534
STAND_IN = (
    2_000_000_000  # the user and the group that nodes run as if files of root appear as theirs; below 2^31, for Docker
)
REQUESTED = "requested"  # the reason of a choice that the user made
MAPPED = "/run/composesim"  # on this machine: folders in which the stand-in owns what root owns, `RUN/NUMBER`
WORKSPACE = "/workspace"  # the copied code of a rendered document


def short_folder(run: str) -> str:
    """
    Return a folder for the sockets of processes on this machine, whose paths the kernel limits to 107 characters.

    The local engine removes it with the run.
    """
    return f"/tmp/composesim-{sha256(run.encode()).hexdigest()[:8]}"


def mapped_folder(run: str) -> str:
    """Return the folder on this machine with the mapped mounts of a run."""
    return f"{MAPPED}/{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision and its reason: `engine docker: Docker Engine 26.1.5 answers`."""

    what: Annotated[str, "What was chosen, such as `engine`"]
    value: Annotated[str, "The chosen value"]
    why: Annotated[str, "The reason for the choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of this machine that is mounted into a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program that every rank runs."""

    target: str  # a path, a module name, or a command
    is_module: bool = False
    is_command: bool = False  # nodes look it up on PATH and run it unchanged
    arguments: tuple[str, ...] = ()
    folder: str  # the nodes' working directory
    mounts: tuple[Mount, ...] = ()  # the user's files that nodes need, the working directory first


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """One node: ranks, limits, environment and command."""

    name: str
    node_rank: int
    first_rank: int
    nproc: int
    cpus: float | None
    memory_bytes: int | None
    environment: Mapping[str, str]  # in addition to that of all nodes
    command: tuple[str, ...]
    gpus: Bound | None = None  # GPUs of this machine; None if it emulates GPUs or has none
    joins_mps: bool = False  # the ranks are clients of the run's MPS daemon

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the global ranks on this node in the first round."""
        return tuple(range(self.first_rank, self.first_rank + self.nproc))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPort:
    """A port of a service that is published on this machine, on 127.0.0.1 only."""

    name: str  # "dashboard"
    port: int  # in the container
    host_port: int = 0  # on this machine; 0 until it is chosen
    path: str = "/"  # of the link; {token} stands for the run's token
    scheme: str = "http"
    login: str = ""  # how to log in, for the user; {token} as above
    discovery: str = ""  # path of an HTTP service discovery for Prometheus


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMaster:
    """The process that runs the rendezvous. Port 0 stands for any free port."""

    name: str
    port: int
    store_port: int
    command: tuple[str, ...]
    ports: tuple[PlannedPort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMps:
    """The MPS daemon, through which ranks of several nodes share a GPU. Nodes join its IPC namespace."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: Bound
    shm_bytes: int  # of /dev/shm, which the daemon shares with the nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedService:
    """A container beside the nodes, such as a notebook. The run does not wait for it."""

    name: str
    image: str = ""  # a tag, or "" for the nodes' image
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # with the nodes' image: in addition to theirs
    mounts: tuple[Mount, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # path in the run's `services` folder -> path of a template
    ports: tuple[PlannedPort, ...] = ()
    network_of: str = ""  # the service whose network (and loopback) it shares, or "" for a separate one
    packages: tuple[str, ...] = ()  # distributions that the nodes' image must have


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that an engine needs to know about a run. Equal specs on equal hosts give equal plans."""

    run: str
    engine: str
    recipe: str
    image: str  # an image tag, or "host"
    python: str
    launcher: str
    backend: str
    world_size: int  # of the first round
    folder: str  # the run's folder in the nodes
    working_directory: str
    program: str  # for display
    user: str  # uid:gid
    user_name: str
    shm_bytes: int
    subnet: str | None
    is_rootless: bool = False  # an ordinary user runs the engine, and is user 0 in its containers
    is_isolated: bool = False  # nodes reach only one another, and publish nothing
    closes_host: bool = False  # nodes reach other machines, but neither this one nor a cloud's metadata
    timeout_s: float | None
    hang_timeout_s: float | None = None  # stop the run if nothing moves for this long
    deadlock_timeout_s: float | None = None  # the same, if ranks wait for each other, which nothing can end
    stall_s: float = 15.0  # report a stall if nothing moves for this long
    keep: bool
    max_restarts: int
    elastic: tuple[int, int] | None = None  # (minimum, maximum) of nodes; None: all nodes, always
    initial_node_count: int  # the run starts with this many of `nodes`; `scale` may start the others
    links: tuple[str, ...] = ()  # shapes, as `--link` takes them
    is_routed: bool = False  # nodes reach one another through the gateway, the only neighbor of each
    scratch_bytes: int | None = None
    default_cpus: int | None = None  # limit of a container that has no other one; None on the local engine
    default_memory_bytes: int | None = None  # likewise
    master: PlannedMaster
    mps: PlannedMps | None = None
    services: tuple[PlannedService, ...] = ()
    is_driven: bool = False  # one program on the master drives the nodes, and the run has the same exit code
    has_token: bool = False  # the run has a token (the file TOKEN)
    exit_codes: Mapping[str, str] = field(default_factory=dict)  # meanings of the framework's exit codes
    nodes: tuple[PlannedNode, ...]
    environment: Mapping[str, str]  # of all nodes
    mounts: tuple[Mount, ...]
    mapped: tuple[
        str, ...
    ] = ()  # where nodes, as STAND_IN, own what root owns: the run's folder, and sources of mounts
    choices: tuple[Choice, ...] = ()
    submit: tuple[str, ...] = ()  # options of the job, on a cluster

    def hang_limit_s(self, *, is_final: bool) -> float | None:
        """After how long without progress the run is stopped; None if never. `is_final` if nothing can end the hang."""
        return self.deadlock_timeout_s if is_final else self.hang_timeout_s

    @property
    def initial_nodes(self) -> tuple[PlannedNode, ...]:
        """Return the nodes that the run starts with."""
        return self.nodes[: self.initial_node_count]

    @property
    def published(self) -> tuple[PlannedPort, ...]:
        """Return all ports that are published on this machine."""
        return (*self.master.ports, *(port for service in self.services for port in service.ports))

    @property
    def writers(self) -> tuple[str, ...]:
        """Return the containers that write into the run's folder; none if nodes are processes."""
        names = ("master", *((MPS_NAME,) if self.mps else ()), *(node.name for node in self.nodes))
        return names if self.engine == "docker" else ()

    @property
    def user_ids(self) -> tuple[int, int]:
        """Return the user and the group that nodes run as."""
        user, _, group = self.user.partition(":")
        return int(user), int(group)

    @property
    def owner_ids(self) -> tuple[int, int]:
        """Return the user and the group to whom files of the nodes belong on the disk."""
        return (0, 0) if self.mapped else self.user_ids

    @property
    def login(self) -> str:
        """Return the name of the user who may open services of the run."""
        return "root" if self.mapped else self.user_name

    def with_mounts(self, *mounts: Mount) -> Plan:
        """Return the plan with further mounts of files of the user."""
        mapped = (*self.mapped, *(mount.source for mount in mounts)) if self.mapped else ()
        return replace(self, mounts=(*self.mounts, *mounts), mapped=mapped)

    def source_of(self, mount: Mount) -> str:
        """Return what containers mount: the source, or the place where root's files in it are mapped."""
        if not self.mapped:
            return mount.source
        place, source = mapped_folder(self.run), PurePosixPath(mount.source)
        if mount.source.startswith("./"):
            return f"{place}/0/{source}"
        for number, folder in enumerate(self.mapped):
            if mount.source == folder:
                return f"{place}/{number}"
            if not mount.read_only and source.is_relative_to(folder):  # so it is not a folder of the system
                return f"{place}/{number}/{source.relative_to(folder)}"
        return mount.source

    @property
    def brings_users(self) -> bool:
        """Whether nodes get a passwd file: `--image host` has none, and ssh looks users up in any image."""
        return self.image == "host" or self.launcher == HOSTED

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)


def plan_from_dict(values: Any) -> Plan:
    """Return the plan that `to_dict` made these values from; raise ValueError for other values."""
    return from_json(Plan, values)


def portable_program(program: Program) -> Program:
    """Return the program with its files copied into a rendered folder: `./code` there, `/workspace` in the nodes."""
    mounts = (Mount(source="./code", target=WORKSPACE),)
    target = program.target if program.is_module or program.is_command else copied_name(program)
    return replace(program, target=target, folder=WORKSPACE, mounts=mounts)


def copied_name(program: Program) -> str:
    """Return the script's path in the copied code: that in the project, or its file name if it is outside of it."""
    path = PurePosixPath(normpath(PurePosixPath(program.folder) / program.target))
    inside = path.is_relative_to(program.folder)
    return str(path.relative_to(program.folder)) if inside else path.name


def node_name(text: str, names: Collection[str], *, run: str) -> str:
    """Return `node-1` for `node-1` or `1`; raise SpecError that lists the nodes for any other text."""
    name = f"node-{int(text)}" if text.isascii() and text.isdigit() else text
    if name not in names:
        raise SpecError(
            f"there is no node '{text}' in the run '{run}': it has {_listed(list(names))}", hint="composesim ps"
        )
    return name


def chosen_ranks(plan: Plan, *, nodes: Sequence[str], ranks: Sequence[str]) -> set[tuple[str, int]]:
    """Return the (node, rank) pairs of the named ranks on the named nodes. Nothing named selects all."""
    by_name = {node.name: node for node in plan.nodes}
    on = [by_name[node_name(text, by_name, run=plan.run)] for text in nodes] or list(plan.nodes)
    existing = {rank: node for node in on for rank in node.ranks}
    for text in ranks:
        if not (text.isascii() and text.isdigit() and int(text) in existing):
            where = f"in the run '{plan.run}'" if on == [*plan.nodes] else f"on {_listed([each.name for each in on])}"
            raise SpecError(f"there is no rank '{text}' {where}: {_ranks(on)}", hint="composesim ps")
    wanted = [int(text) for text in ranks] or list(existing)
    return {(existing[rank].name, rank) for rank in wanted}


def one_rank(plan: Plan, text: str | None, *, waiting: Sequence[int] = ()) -> tuple[str, int]:
    """
    Return the node and the number of the named rank. Nothing named means the first one that waits at a breakpoint, or the only rank.

    Raises SpecError if there are several ranks, and none waits.
    """
    named = text if text is not None else str(waiting[0]) if waiting else None
    chosen = chosen_ranks(plan, nodes=(), ranks=[] if named is None else [named])
    if len(chosen) > 1:
        ranks = _ranks(list(plan.nodes))
        raise SpecError(f"--rank is required: {ranks}, and none waits", hint="composesim attach --rank 0")
    return chosen.pop()


def _ranks(on: list[PlannedNode]) -> str:
    ranks = [str(rank) for node in on for rank in node.ranks]
    return f"there is only rank {ranks[0]}" if len(ranks) == 1 else f"there are ranks {_listed(ranks)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])}, … {names[-1]}"
