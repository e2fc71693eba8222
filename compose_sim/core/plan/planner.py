"""Plan a run: turn a request, a host and a recipe into nodes, commands, GPUs, ports and environment.

Each decision that the user left to composesim is made here, and recorded with the reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from compose_sim.core.host.host import Host
from compose_sim.core.plan.capacity import LAZY_GLOO, check_capacity, connects_lazily, default_memory_bytes, is_routed
from compose_sim.core.plan.defaults import (
    check_driven,
    choose_backend,
    choose_engine,
    choose_gpus,
    choose_image,
    cuda_of_nodes,
    find_cluster,
    require_no_options_of_others,
)
from compose_sim.core.plan.environment import common_environment, gpu_environment, stall_seconds, with_dotenv
from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME, GpuPlan, plan_gpus
from compose_sim.core.plan.limits import check_limits, choose_network, choose_subnet, choose_user, with_user_of_nodes
from compose_sim.core.plan.model import (
    CONTAINER_FOLDER,
    FIRST_NODE,
    HOSTED,
    Choice,
    Mount,
    Plan,
    PlannedMaster,
    PlannedMps,
    PlannedNode,
    Program,
)
from compose_sim.core.plan.mounts import driver_mounts, mapped_sources, node_mounts, private_project
from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.plan.recipes import ClusterLayout, Recipe, load_recipe
from compose_sim.core.plan.recipes.options import check_options
from compose_sim.core.plan.services import ServiceContext, needed_packages, plan_services
from compose_sim.core.request.spec import ISOLATED, ClusterSpec
from compose_sim.core.text import on_one_line, without_temporary_folder
from compose_sim.errors import SpecError

RENDEZVOUS_PORT = 29400  # torchrun's default port for a rendezvous
STORE_PORT = 29500  # torch's default MASTER_PORT
_DEADLOCK_S = 60.0  # of ranks that wait for each other, which the user may want to look at
_LONGEST_SOCKET_FOLDER = 80  # a socket's path has at most 107 characters, and MPS appends to the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime:
    """The decisions that all others depend on: engine, image and GPUs."""

    host: Host  # with the user that nodes run as
    engine: Choice
    image: Choice
    python: str
    folder: str
    mounts: tuple[Mount, ...] = ()
    gpus: Choice
    gpu_plan: GpuPlan | None = None  # None if nodes see no GPU of this machine
    mapped: tuple[str, ...] = ()  # see Plan
    backend: Choice
    scarce: tuple[Choice, ...] = ()  # resources of this machine
    lazy: bool = False  # whether gloo connects ranks only when they need it
    job: Choice | None = None  # options of the job, on a cluster

    @property
    def contained(self) -> bool:
        """Whether nodes are containers."""
        return self.engine.value == "docker"


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
    isolates: bool = False,
) -> Plan:
    """
    Return the plan of a request for this host. `recipe` is needed only for a recipe that composesim does not include.

    `dotenv` holds the variables of `.env`, and `env_files` those of `--env-file`; variables of the spec win over both.
    With `isolates`, nodes reach only one another unless the spec says otherwise.
    A `portable` plan is for another machine (`render`), so nothing is checked against this one.
    Raises SpecError if the request cannot be met, and EnvironmentMissingError if something has to be installed first.
    """
    recipe = recipe or load_recipe(spec.recipe)
    runtime = _choose_runtime(spec, host, recipe, program, run=run, run_folder=run_folder, portable=portable)
    layout = _lay_out(spec, program, runtime)
    context = ServiceContext(
        run=run,
        python=runtime.python,
        folder=CONTAINER_FOLDER,
        working_directory=program.folder,
        node_mounts=runtime.mounts,
        has_token=recipe.DRIVEN,
    )
    listening = {} if portable else host.listening
    services, ports, port_choices = plan_services(
        spec, recipe.ports(layout), context, listening=listening, contained=runtime.contained
    )
    layout = replace(layout, published={port.name: port.port for port in ports})
    plan = _assemble(spec, recipe, layout, runtime, run=run)
    project = private_project(program) if runtime.contained else None
    network = choose_network(spec, contained=runtime.contained, isolates=isolates)
    is_isolated = network is not None and network.value in ISOLATED
    is_limited = runtime.contained and not portable
    common = with_dotenv(plan.environment, dotenv or {}, contained=runtime.contained)
    requested = filter(None, (choose_user(spec, host, plan, portable=portable), project, network))
    return replace(
        plan,
        # A rendered document leaves the subnet to the engine that will run it.
        subnet=spec.subnet if portable else choose_subnet(spec, host, run=run) if runtime.contained else None,
        default_cpus=host.docker.cpus if is_limited else None,
        default_memory_bytes=default_memory_bytes(host) if is_limited else None,
        is_rootless=is_limited and host.docker.rootless,
        is_isolated=is_isolated,
        is_routed=is_limited and is_routed(plan, host),
        closes_host=runtime.contained and not (portable or is_isolated or spec.network == "full"),
        master=replace(plan.master, ports=() if is_isolated else ports),
        services=services,
        has_token=recipe.DRIVEN or bool(services),
        environment={**common, **(env_files or {}), **spec.env},
        choices=(*plan.choices, *requested, *(() if is_isolated else port_choices)),
    )


def _choose_runtime(
    spec: ClusterSpec, host: Host, recipe: Recipe, program: Program, *, run: str, run_folder: str, portable: bool
) -> _Runtime:
    check_options(spec.options, recipe.OPTIONS, recipe=spec.recipe)
    if recipe.DRIVEN:
        check_driven(spec)
    engine = choose_engine(spec, host, portable=portable)
    if engine.value == "docker" and not _is_utf8(f"{program.folder}{run_folder}"):
        problem = f"containers cannot see {program.folder!a}, whose name is not UTF-8"
        raise SpecError(problem, hint="rename the folder, or composesim up --engine local …")
    packages = {**recipe.PACKAGES, **needed_packages(spec.services)}
    require_no_options_of_others(spec, engine.value)
    cluster = find_cluster(engine.value)
    if cluster:
        cluster.check(spec)
    image, python = choose_image(spec, host, engine=engine.value, packages=packages, portable=portable)
    launcher = recipe.launcher(spec)
    if cluster:
        gpus, backend, job = cluster.choose(spec)
        return _Runtime(
            host=host, engine=engine, image=image, python=python, folder=run_folder, gpus=gpus, backend=backend, job=job
        )
    check_limits(spec, host, engine=engine.value, portable=portable)
    contained = engine.value == "docker"
    folder = CONTAINER_FOLDER if contained else run_folder
    mounts = node_mounts(spec, host, program, image=image.value) if contained else ()
    cuda, framework = cuda_of_nodes(host, image=image.value, packages=recipe.PACKAGES)
    hidden = choose_gpus(spec, host, cuda=cuda, framework=framework, emulates=recipe.EMULATES_GPUS)
    shown, gpu_plan = hidden, None
    if shown is None:
        sockets = f"{folder}/mps"
        gpu_plan = plan_gpus(
            spec,
            host,
            contained=contained,
            mps_folder=sockets if len(sockets) <= _LONGEST_SOCKET_FOLDER else f"/tmp/composesim-mps-{run}",
            visible=[mount.target for mount in mounts if mount.source == mount.target],
        )
        shown = Choice(what="gpus", value=gpu_plan.value, why=gpu_plan.why)
    may_map = contained and gpu_plan is None and not portable
    mapped = mapped_sources(spec, host, mounts, run_folder=run_folder) if may_map else ()
    host = with_user_of_nodes(host, mapped=mapped, hosted=contained and launcher == HOSTED)
    on_all = gpu_plan is None or all(node.bound.uuids for node in gpu_plan.nodes)
    backend = choose_backend(spec, host, gpus=hidden.value if hidden else None, all_nodes=on_all)
    needs = {"engine": engine.value, "launcher": launcher, "backend": backend.value}
    return _Runtime(
        host=host,
        engine=engine,
        image=image,
        python=python,
        folder=folder,
        mounts=mounts,
        gpus=shown,
        gpu_plan=gpu_plan,
        mapped=mapped,
        backend=backend,
        scarce=() if portable else check_capacity(spec, host, **needs),
        lazy=not portable and connects_lazily(spec, host, engine=engine.value, backend=backend.value),
    )


def _is_utf8(path: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in path)


def _lay_out(spec: ClusterSpec, program: Program, runtime: _Runtime) -> ClusterLayout:
    contained = runtime.contained
    return ClusterLayout(
        spec=spec,
        program=program,
        python=runtime.python,
        folder=runtime.folder,
        contained=contained,
        host="master" if contained else FIRST_NODE if runtime.job else "127.0.0.1",
        # Nodes of the local engine share the ports of this machine, so they take free ones.
        port=RENDEZVOUS_PORT if contained else 0,
        store_port=spec.master_port or (STORE_PORT if contained else 0),
    )


def _assemble(spec: ClusterSpec, recipe: Recipe, layout: ClusterLayout, runtime: _Runtime, *, run: str) -> Plan:
    """Return the plan without what depends on other files, services and free subnets."""
    host, program, gpu_plan = runtime.host, layout.program, runtime.gpu_plan
    nodes = _plan_nodes(recipe, layout, runtime, run=run)
    job = (runtime.job,) if runtime.job else ()
    return Plan(
        run=run,
        engine=runtime.engine.value,
        recipe=spec.recipe,
        image=runtime.image.value,
        python=runtime.python,
        launcher=recipe.launcher(spec),
        backend=runtime.backend.value,
        world_size=sum(node.nproc for node in nodes[: spec.initial_node_count]),
        folder=runtime.folder,
        working_directory=program.folder,
        program=without_temporary_folder(
            " ".join((("-m",) if program.is_module else ()) + (program.target, *map(on_one_line, program.arguments)))
        ),
        user=f"{host.user_id}:{host.group_id}",
        user_name=host.user_name,
        shm_bytes=spec.shm_size,
        subnet=None,
        timeout_s=spec.timeout,
        hang_timeout_s=spec.hang_timeout,
        deadlock_timeout_s=spec.hang_timeout if "hang_timeout" in spec.model_fields_set else _DEADLOCK_S,
        stall_s=stall_seconds(spec),
        keep=spec.keep is True,
        max_restarts=spec.max_restarts,
        elastic=spec.elastic_range,
        initial_node_count=spec.initial_node_count,
        links=spec.link,
        scratch_bytes=spec.scratch,
        master=PlannedMaster(
            name=layout.host, port=layout.port, store_port=layout.store_port, command=recipe.master_command(layout)
        ),
        mps=_plan_mps(spec, runtime, gpu_plan) if gpu_plan else None,
        is_driven=recipe.DRIVEN,
        exit_codes={str(code): meaning for code, meaning in recipe.EXIT_CODES.items()},
        nodes=nodes,
        environment={
            **common_environment(layout, host, run=run, image=runtime.image.value),
            **(gpu_plan.environment if gpu_plan else {}),
            **({LAZY_GLOO: "1"} if runtime.lazy else {}),
            **recipe.environment(layout),
        },
        mounts=(*runtime.mounts, *driver_mounts(gpu_plan)),
        mapped=runtime.mapped,
        submit=tuple(shlex.split(runtime.job.value)) if runtime.job else (),
        choices=(runtime.engine, runtime.image, runtime.backend, runtime.gpus, *job, *runtime.scarce),
    )


def _plan_nodes(recipe: Recipe, layout: ClusterLayout, runtime: _Runtime, *, run: str) -> tuple[PlannedNode, ...]:
    spec, command = layout.spec, recipe.node_command(layout)
    nodes: list[PlannedNode] = []
    first_rank = 0
    for node_rank, own in enumerate(spec.node_specs):
        name, nproc = f"node-{node_rank}", own.nproc_per_node or spec.nproc_per_node
        gpus = runtime.gpu_plan.nodes[node_rank] if runtime.gpu_plan else None
        hidden = {} if gpus else gpu_environment(layout, runtime.host, gpus=runtime.gpus.value, nproc=nproc)
        nodes.append(
            PlannedNode(
                name=name,
                node_rank=node_rank,
                first_rank=first_rank,
                nproc=nproc,
                cpus=own.cpus or spec.cpus,
                memory_bytes=own.memory or spec.memory,
                environment={
                    "COMPOSESIM_NODE": name,
                    "COMPOSESIM_NODE_RANK": str(node_rank),
                    "COMPOSESIM_NPROC": str(nproc),
                    "NCCL_HOSTID": f"{run}-{name}",  # or NCCL would take all nodes for one host
                    **(gpus.environment if gpus else hidden),
                    **own.env,
                },
                command=command,
                gpus=gpus.bound if gpus else None,
                joins_mps=bool(gpus and gpus.mps),
            )
        )
        first_rank += nproc
    return tuple(nodes)


def _plan_mps(spec: ClusterSpec, runtime: _Runtime, gpus: GpuPlan) -> PlannedMps | None:
    if gpus.mps is None:
        return None
    return PlannedMps(
        command=(runtime.python, *role_command(runtime.folder, "mps", "serve")),
        environment={"COMPOSESIM_NODE": MPS_NAME, **gpus.mps.environment},
        gpus=gpus.mps.bound,
        shm_bytes=spec.shm_size * (1 + sum(node.mps for node in gpus.nodes)),
    )
