"""Which nodes will there be, which ranks live on each, and what is each told? ClusterSpec and Host in, Plan out.

Every choice that was left to composesim is made here and leaves with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from compose_sim.core.host.host import Host
from compose_sim.core.plan.defaults import (
    check_driven,
    check_options,
    choose_backend,
    choose_engine,
    choose_gpus,
    choose_image,
    cuda_of_nodes,
)
from compose_sim.core.plan.environment import as_dotenv_changes_it, common_environment, gpu_environment, stall_seconds
from compose_sim.core.plan.gpus.assignment import Wish
from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME, GpuPlan, plan_gpus
from compose_sim.core.plan.limits import check_limits, choose_subnet
from compose_sim.core.plan.model import (
    CONTAINER_FOLDER,
    HOSTED,
    NOBODY,
    Choice,
    Mount,
    Plan,
    PlannedMaster,
    PlannedMps,
    PlannedNode,
    Program,
)
from compose_sim.core.plan.node_roles import role_words
from compose_sim.core.plan.recipes import Cluster, Recipe, load_recipe
from compose_sim.core.plan.services import needed_packages
from compose_sim.core.plan.services_plan import plan_services
from compose_sim.core.request.spec import ClusterSpec

RENDEZVOUS_PORT = 29400  # torchrun's default for its own rendezvous
STORE_PORT = 29500  # torch's default MASTER_PORT
_LONGEST_SOCKET_FOLDER = 80  # the kernel takes 107 characters for the path of a socket, and MPS adds its own


def make_plan(
    spec: ClusterSpec,
    host: Host,
    *,
    run: str,
    run_folder: str,
    program: Program,
    recipe: Recipe | None = None,
    dotenv: Mapping[str, str] | None = None,
    env_files: Mapping[str, str] | None = None,
    portable: bool = False,
) -> Plan:
    """
    Lower a request to a plan for this host; `recipe` is the spec's own, where it is none of ours.

    `dotenv` holds the variables of `.env`, `env_files` those of `--env-file`; the spec's own win over both.
    A `portable` plan is one that
    leaves this machine (`render`): nothing is checked against what is free here now.
    Raises SpecError where the request cannot be met, EnvironmentMissingError where something must be installed first.
    """
    recipe = recipe or load_recipe(spec.recipe)
    check_options(spec.options, recipe.OPTIONS, recipe=spec.recipe)
    if recipe.DRIVEN:
        check_driven(spec)
    engine = choose_engine(spec, host, portable=portable)
    packages = {**recipe.PACKAGES, **needed_packages(spec.services)}
    image, python = choose_image(spec, host, engine=engine.value, packages=packages)
    check_limits(spec, host, engine=engine.value, portable=portable)
    contained = engine.value == "docker"
    launcher = recipe.launcher(spec)
    host = as_ordinary_user(host) if contained and launcher == HOSTED else host
    folder = CONTAINER_FOLDER if contained else run_folder
    mounts = _mounts(spec, host, program, image=image.value, contained=contained)
    cuda, framework = cuda_of_nodes(host, image=image.value, packages=recipe.PACKAGES)
    shown = choose_gpus(spec, host, cuda=cuda, framework=framework, emulates=recipe.EMULATES_GPUS)
    real = None if shown else _gpu_plan(spec, host, mounts, run=run, folder=folder, contained=contained)
    gpus = shown or Choice(what="gpus", value=real.value if real else "", why=real.why if real else "")
    on_all = real is None or all(node.bound.uuids for node in real.nodes)
    backend = choose_backend(spec, host, gpus=shown.value if shown else None, all_nodes=on_all)
    cluster = _cluster(spec, program, python=python, folder=folder, contained=contained)
    user = f"{host.user_id}:{host.group_id}"
    services, ports, moved = plan_services(
        spec,
        recipe.ports(cluster),
        run=run,
        python=python,
        user=user,
        working_directory=program.folder,
        mounts=mounts,
        has_token=recipe.DRIVEN,
        listening={} if portable else host.listening,
        contained=contained,
    )
    cluster = replace(cluster, published={port.name: port.port for port in ports})
    environment = {
        **common_environment(
            spec,
            host,
            run=run,
            folder=folder,
            master=f"{cluster.host}:{cluster.port}",
            contained=contained,
            image=image.value,
            python=python,
        ),
        **(real.environment if real else {}),
        **recipe.environment(cluster),
    }
    nodes = _nodes(cluster, host, recipe, run=run, gpus=real or gpus.value)
    return Plan(
        run=run,
        engine=engine.value,
        recipe=spec.recipe,
        image=image.value,
        python=python,
        launcher=launcher,
        backend=backend.value,
        world_size=sum(node.nproc for node in nodes[: spec.initial_node_count]),
        folder=folder,
        working_directory=program.folder,
        program=" ".join((("-m",) if program.is_module else ()) + (program.target, *program.arguments)),
        user=user,
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
        initial_node_count=spec.initial_node_count,
        links=spec.link,
        scratch_bytes=spec.scratch,
        master=PlannedMaster(
            name=cluster.host,
            port=cluster.port,
            store_port=cluster.store_port,
            command=recipe.master_command(cluster),
            ports=ports,
        ),
        services=services,
        is_driven=recipe.DRIVEN,
        has_token=recipe.DRIVEN or bool(services),
        exit_codes={str(code): meaning for code, meaning in recipe.EXIT_CODES.items()},
        mps=_mps(spec, real, python=python, folder=folder),
        nodes=nodes,
        environment={
            **as_dotenv_changes_it(environment, dotenv or {}, contained=contained),
            **(env_files or {}),
            **spec.env,
        },
        mounts=(*mounts, *_driver_mounts(real)),
        choices=(engine, image, backend, gpus, *moved),
    )


def as_ordinary_user(host: Host) -> Host:
    """The host with nodes that run as nobody where all is root's: an sshd of root's wants capabilities that no node has."""
    return replace(host, user_id=NOBODY, group_id=NOBODY, user_name="node") if host.user_id == 0 else host


def _cluster(spec: ClusterSpec, program: Program, *, python: str, folder: str, contained: bool) -> Cluster:
    return Cluster(
        spec=spec,
        program=program,
        python=python,
        folder=folder,
        contained=contained,
        host="master" if contained else "127.0.0.1",
        # The local engine shares this machine's ports with everybody, so it takes free ones.
        port=RENDEZVOUS_PORT if contained else 0,
        store_port=spec.master_port or (STORE_PORT if contained else 0),
    )


def _nodes(cluster: Cluster, host: Host, recipe: Recipe, *, run: str, gpus: GpuPlan | str) -> tuple[PlannedNode, ...]:
    spec, command = cluster.spec, recipe.node_command(cluster)
    nodes: list[PlannedNode] = []
    first_rank = 0
    for node_rank, own in enumerate(spec.node_specs):
        name = f"node-{node_rank}"
        nproc = own.nproc_per_node or spec.nproc_per_node
        mine = gpus.nodes[node_rank] if isinstance(gpus, GpuPlan) else None
        environment = {
            "COMPOSESIM_NODE": name,
            "COMPOSESIM_NODE_RANK": str(node_rank),
            "COMPOSESIM_NPROC": str(nproc),
            "NCCL_HOSTID": f"{run}-{name}",  # NCCL then takes nodes on one machine, even on one GPU, for different hosts
            **(mine.environment if mine else gpu_environment(spec, host, gpus=str(gpus), nproc=nproc)),
            **own.env,
        }
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
                gpus=mine.bound if mine else None,
                joins_mps=bool(mine and mine.mps),
            )
        )
        first_rank += nproc
    return tuple(nodes)


def _gpu_plan(
    spec: ClusterSpec, host: Host, mounts: tuple[Mount, ...], *, run: str, folder: str, contained: bool
) -> GpuPlan:
    wishes = [
        Wish(
            node=f"node-{number}",
            ranks=node.nproc_per_node or spec.nproc_per_node,
            gpus=node.gpus or "",
            per_node=spec.gpus_per_node,
        )
        for number, node in enumerate(spec.node_specs)
    ]
    mps_folder = f"{folder}/mps"
    return plan_gpus(
        wishes,
        host.gpus,
        gpus=spec.gpus,
        share=spec.share,
        gpu_memory=spec.gpu_memory,
        contained=contained,
        cpus=host.cpus,
        mps_folder=mps_folder if len(mps_folder) <= _LONGEST_SOCKET_FOLDER else f"/tmp/composesim-mps-{run}",
        visible=[mount.target for mount in mounts if mount.source == mount.target],
    )


def _mps(spec: ClusterSpec, gpus: GpuPlan | None, *, python: str, folder: str) -> PlannedMps | None:
    if not gpus or not gpus.mps:
        return None
    return PlannedMps(
        command=(python, *role_words(folder, "mps", "serve")),
        environment={"COMPOSESIM_NODE": MPS_NAME, **gpus.mps.environment},
        gpus=gpus.mps.bound,
        shm_bytes=spec.shm_size * (1 + sum(node.mps for node in gpus.nodes)),
    )


def _driver_mounts(gpus: GpuPlan | None) -> tuple[Mount, ...]:
    mounts = gpus.mounts if gpus else {}
    return tuple(Mount(source=source, target=target, read_only=True) for source, target in mounts.items())


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
