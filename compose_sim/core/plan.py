"""Which nodes will there be, which ranks live on each, and what is each told? ClusterSpec and Host in, Plan out.

Every choice that was left to composesim is made here and leaves with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from compose_sim.core.choices import Choice, choose_backend, choose_engine, choose_gpus, choose_image
from compose_sim.core.environment import as_dotenv_changes_it, common_environment, gpu_environment, stall_seconds
from compose_sim.core.inventory import Host
from compose_sim.core.limits import check_limits, choose_subnet
from compose_sim.core.recipes import Recipe, load_recipe
from compose_sim.core.spec import ClusterSpec

CONTAINER_FOLDER = "/composesim"  # the run's folder as containers see it
WORKSPACE = "/workspace"  # where the copied code of a rendered document lies
RENDEZVOUS_PORT = 29400  # torchrun's default for its own rendezvous
STORE_PORT = 29500  # torch's default MASTER_PORT


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

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks on this node in the first round."""
        return tuple(range(self.first_rank, self.first_rank + self.nproc))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMaster:
    """The service that holds the rendezvous. Port 0 means that any free port will do."""

    name: str
    port: int
    store_port: int
    command: tuple[str, ...]


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
    first_nodes: int = 0  # how many of `nodes` are started first; 0: all
    links: tuple[str, ...] = ()  # shapes as `--link` takes them
    scratch_bytes: int | None = None
    master: PlannedMaster
    nodes: tuple[PlannedNode, ...]
    environment: Mapping[str, str]  # what all nodes have in common
    mounts: tuple[Mount, ...]
    choices: tuple[Choice, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)


def make_plan(
    spec: ClusterSpec,
    host: Host,
    *,
    run: str,
    run_folder: str,
    program: Program,
    dotenv: Mapping[str, str] | None = None,
    env_files: Mapping[str, str] | None = None,
    portable: bool = False,
) -> Plan:
    """
    Lower a request to a plan for this host.

    `dotenv` holds the variables of `.env`, `env_files` those of `--env-file`; the spec's own win over both.
    A `portable` plan is one that
    leaves this machine (`render`): nothing is checked against what is free here now.
    Raises SpecError where the request cannot be met, EnvironmentMissingError where something must be installed first.
    """
    engine = choose_engine(spec, host, portable=portable)
    image, python = choose_image(spec, host, engine=engine.value)
    gpus = choose_gpus(spec, host)
    shown = gpus.value if gpus else None
    backend = choose_backend(spec, host, gpus=shown)
    recipe = load_recipe(spec.recipe)
    check_limits(spec, host, engine=engine.value, portable=portable)
    contained = engine.value == "docker"
    folder = CONTAINER_FOLDER if contained else run_folder
    master = _master(spec, recipe, python=python, folder=folder, contained=contained)
    environment = common_environment(
        spec,
        host,
        run=run,
        folder=folder,
        master=f"{master.name}:{master.port}",
        contained=contained,
        image=image.value,
        python=python,
    )
    nodes = _nodes(spec, host, recipe, program, python=python, folder=folder, contained=contained, run=run, gpus=shown)
    return Plan(
        run=run,
        engine=engine.value,
        recipe=spec.recipe,
        image=image.value,
        python=python,
        launcher=spec.launcher,
        backend=backend.value,
        world_size=sum(node.nproc for node in nodes[: spec.first_nodes]),
        folder=folder,
        working_directory=program.folder,
        program=" ".join((("-m",) if program.is_module else ()) + (program.target, *program.arguments)),
        user=f"{host.user_id}:{host.group_id}",
        user_name=host.user_name,
        shm_bytes=spec.shm_size,
        # A document that travels leaves the subnet to the engine that will run it.
        subnet=spec.subnet if portable else choose_subnet(spec, host) if contained else None,
        timeout_s=spec.timeout,
        hang_timeout_s=spec.hang_timeout,
        stall_s=stall_seconds(spec),
        keep=spec.keep,
        max_restarts=spec.max_restarts,
        elastic=spec.elastic_range,
        first_nodes=spec.first_nodes,
        links=spec.link,
        scratch_bytes=spec.scratch,
        master=master,
        nodes=nodes,
        environment={
            **as_dotenv_changes_it(environment, dotenv or {}, contained=contained),
            **(env_files or {}),
            **spec.env,
        },
        mounts=_mounts(spec, host, program, image=image.value, contained=contained),
        choices=(engine, image, backend, *((gpus,) if gpus else ())),
    )


def portable_program(program: Program) -> Program:
    """The same program, its files copied into the folder of a rendered document: `./code` there, `/workspace` on nodes."""
    mounts = (Mount(source="./code", target=WORKSPACE),)
    target = program.target if program.is_module else copied_name(program)
    return replace(program, target=target, folder=WORKSPACE, mounts=mounts)


def copied_name(program: Program) -> str:
    """The script's name below the copied code: below the project, or alone where it lies outside of it."""
    path = PurePosixPath(normpath(PurePosixPath(program.folder) / program.target))
    inside = path.is_relative_to(program.folder)
    return str(path.relative_to(program.folder)) if inside else path.name


def _master(spec: ClusterSpec, recipe: Recipe, *, python: str, folder: str, contained: bool) -> PlannedMaster:
    # The local engine shares this machine's ports with everybody, so it takes free ones.
    port = RENDEZVOUS_PORT if contained else 0
    store_port = spec.master_port or (STORE_PORT if contained else 0)
    name = "master" if contained else "127.0.0.1"
    command = recipe.master_command(spec, python=python, folder=folder, host=name, port=port, store_port=store_port)
    return PlannedMaster(name=name, port=port, store_port=store_port, command=command)


def _nodes(
    spec: ClusterSpec,
    host: Host,
    recipe: Recipe,
    program: Program,
    *,
    python: str,
    folder: str,
    contained: bool,
    run: str,
    gpus: str | None,
) -> tuple[PlannedNode, ...]:
    nodes: list[PlannedNode] = []
    first_rank = 0
    for node_rank, own in enumerate(spec.node_specs):
        name = f"node-{node_rank}"
        nproc = own.nproc_per_node or spec.nproc_per_node
        environment = {
            "COMPOSESIM_NODE": name,
            "COMPOSESIM_NODE_RANK": str(node_rank),
            "COMPOSESIM_NPROC": str(nproc),
            "NCCL_HOSTID": f"{run}-{name}",  # NCCL then takes nodes on one machine, even on one GPU, for different hosts
            **gpu_environment(spec, host, gpus=gpus, nproc=nproc),
            **own.env,
        }
        command = recipe.node_command(
            spec,
            python=python,
            folder=folder,
            target=program.target,
            is_module=program.is_module,
            arguments=program.arguments,
            first_node="node-0" if contained else "127.0.0.1",
        )
        nodes.append(
            PlannedNode(
                name=name,
                node_rank=node_rank,
                first_rank=first_rank,
                nproc=nproc,
                cpus=own.cpus or spec.cpus,
                memory_bytes=own.memory or spec.memory,
                environment=environment,
                command=command,
            )
        )
        first_rank += nproc
    return tuple(nodes)


def _mounts(spec: ClusterSpec, host: Host, program: Program, *, image: str, contained: bool) -> tuple[Mount, ...]:
    if not contained:
        return ()
    mounts = list(program.mounts)
    if image == "host" and host.python:
        paths = (*host.system_paths, *host.python.prefixes)
        outermost = [path for path in paths if not any(_is_below(path, other) for other in paths if other != path)]
        mounts += [Mount(source=path, target=path, read_only=True) for path in sorted(set(outermost))]
    for text in spec.mounts:
        source, target, *mode = text.split(":")
        source = str(PurePosixPath(host.folder) / source)
        mounts.append(Mount(source=source, target=target, read_only=mode == ["ro"]))
    return tuple(mounts)


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def plan_from_dict(values: Mapping[str, Any]) -> Plan:
    """The plan that `to_dict` made these values from; KeyError or TypeError where they are not one's."""
    nodes = tuple(PlannedNode(**{**node, "command": tuple(node["command"])}) for node in values["nodes"])
    master = PlannedMaster(**{**values["master"], "command": tuple(values["master"]["command"])})
    mounts = tuple(Mount(**mount) for mount in values["mounts"])
    choices = tuple(Choice(**choice) for choice in values["choices"])
    links, elastic = tuple(values["links"]), tuple(values["elastic"]) if values["elastic"] else None
    made = {"nodes": nodes, "master": master, "mounts": mounts, "choices": choices, "links": links, "elastic": elastic}
    return Plan(**{**values, **made})
