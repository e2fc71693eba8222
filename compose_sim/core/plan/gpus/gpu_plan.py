"""Plan the GPUs of a run: which each node sees, how they are bound, and the variables of nodes and of the MPS daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compose_sim.core.host.gpus import Gpu, Inventory
from compose_sim.core.host.host import Host
from compose_sim.core.plan.gpus.assignment import Assignment, assign
from compose_sim.core.plan.gpus.binding import (
    RAW,
    VARIABLES,
    Bound,
    bind,
    binding_environment,
    choose_binding,
    driver_mounts,
    library_path,
)
from compose_sim.core.plan.gpus.request import label
from compose_sim.core.plan.gpus.sharing import CONTEXT_BYTES, MPS, OWN, Sharing, crowds_cpus, decide_sharing
from compose_sim.core.units import format_bytes

if TYPE_CHECKING:  # the model of a request takes longer to import than a command that only reads a run needs
    from compose_sim.core.request.spec import ClusterSpec

MPS_NAME = "mps"  # of the service, and of the node in the events


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """The GPUs of one node, and whether ranks on it are clients of the run's MPS daemon."""

    bound: Bound
    environment: dict[str, str]
    mps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """All that real GPUs add to a plan."""

    value: str  # of the Choice: "2 × NVIDIA H200"
    why: str
    nodes: tuple[NodeGpus, ...]
    mps: NodeGpus | None  # the GPUs of the MPS daemon, if the run has one
    mounts: Mapping[str, str] = field(default_factory=dict)  # of the driver, read-only: source -> target
    environment: Mapping[str, str] = field(default_factory=dict)  # of all nodes


def plan_gpus(spec: ClusterSpec, host: Host, *, contained: bool, mps_folder: str, visible: Sequence[str]) -> GpuPlan:
    """
    Assign GPUs to the nodes. `mps_folder` is the nodes' path for the pipes of MPS; containers see `visible` folders anyway.

    Raises SpecError if the nodes do not fit, and EnvironmentMissingError if this machine lacks something.
    """
    inventory = host.gpus
    assignment = assign(spec, inventory)
    sharing = decide_sharing(assignment, inventory, share=spec.share, gpu_memory=spec.gpu_memory)
    sees_driver = not driver_mounts(inventory.toolkit, visible=visible)
    form, how = choose_binding(inventory, contained=contained, needed=assignment.gpus, own_driver=sees_driver)
    clients = [any(sharing.shares[gpu.uuid].mode == MPS for gpu in node) for node in assignment.nodes]
    # An MPS client sees what the daemon sees: all GPUs of all clients.
    served = tuple(
        {gpu.uuid: gpu for node, joins in zip(assignment.nodes, clients, strict=True) if joins for gpu in node}.values()
    )
    crowds = _crowds(spec, sharing, cpus=host.cpus)
    nodes = tuple(
        _node(node, inventory, sharing, form=form, joins_mps=joins, mps_folder=mps_folder, crowd=crowd)
        for node, joins, crowd in zip(assignment.nodes, clients, crowds, strict=True)
    )
    mounts = driver_mounts(inventory.toolkit, visible=visible) if form == RAW else {}
    needs_path = bool(mounts or inventory.toolkit.driver_folders)
    return GpuPlan(
        value=_value(assignment),
        why=_why(assignment, sharing, gpus=spec.gpus, how=how),
        nodes=nodes,
        mps=_mps(served, inventory, mounts, form=form, mps_folder=mps_folder) if served else None,
        mounts=mounts,
        environment={
            **_nccl(assignment, sharing),
            **({"LD_LIBRARY_PATH": library_path(inventory.toolkit)} if form == RAW and needs_path else {}),
        },
    )


def _crowds(spec: ClusterSpec, sharing: Sharing, *, cpus: int) -> list[str]:
    """Return `FIRST/ALL` for each node (the first rank on it, and all ranks) if ranks must divide the CPUs among them, else ""."""
    ranks = [node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs]
    if not crowds_cpus(sharing, ranks=sum(ranks), cpus=cpus):
        return [""] * len(ranks)
    return [f"{sum(ranks[:node])}/{sum(ranks)}" for node in range(len(ranks))]


def _nccl(assignment: Assignment, sharing: Sharing) -> dict[str, str]:
    """Return NCCL's variables. Those that the user sets win over them."""
    environment = {
        "NCCL_IB_DISABLE": "1",  # otherwise NCCL would use this machine's InfiniBand instead of the run's network
        "NCCL_NVLS_ENABLE": "0",  # ranks that share a GPU cannot use its multicast
    }
    is_shared = any(share.mode != OWN for share in sharing.shares.values())
    if is_shared and all(len(node) <= 1 for node in assignment.nodes):
        environment["NCCL_MAX_CTAS"] = "1"  # one channel with one socket per neighbor, to save CPU
    return environment


def _node(
    gpus: tuple[Gpu, ...],
    inventory: Inventory,
    sharing: Sharing,
    *,
    form: str,
    joins_mps: bool,
    mps_folder: str,
    crowd: str,
) -> NodeGpus:
    bound = bind(gpus, inventory, form)
    environment = binding_environment(bound, inventory) | {"COMPOSESIM_GPUS": ",".join(bound.uuids)}
    limits = [limit for gpu in gpus if (limit := sharing.shares[gpu.uuid].bytes_per_rank)]
    if limits:  # the allocator of torch counts neither the CUDA context nor NCCL's buffers
        fraction = (min(limits) - CONTEXT_BYTES) / max(gpu.memory_bytes for gpu in gpus)
        environment["COMPOSESIM_GPU_FRACTION"] = f"{fraction:.4f}"
    if gpus and crowd:
        environment["COMPOSESIM_GPU_CROWD"] = crowd
    if joins_mps:
        environment |= {"COMPOSESIM_MPS": "1", "CUDA_MPS_PIPE_DIRECTORY": mps_folder}
    if joins_mps and limits:
        # MPS numbers the devices that the client sees, and ignores the whole limit if it has one number too many.
        megabytes = min(limits) >> 20
        environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(f"{n}={megabytes}M" for n in range(len(gpus)))
    return NodeGpus(bound=bound, environment=environment, mps=joins_mps)


def _mps(
    served: tuple[Gpu, ...], inventory: Inventory, mounts: Mapping[str, str], *, form: str, mps_folder: str
) -> NodeGpus:
    bound = bind(served, inventory, form)
    # NVIDIA's runtime and CDI put the program on PATH. Otherwise it is at this machine's path, or mounted.
    control = inventory.toolkit.mps_control
    program = mounts.get(control, control) if form in (RAW, VARIABLES) else "nvidia-cuda-mps-control"
    environment = binding_environment(bound, inventory) | {
        "COMPOSESIM_MPS_CONTROL": program,
        "CUDA_MPS_PIPE_DIRECTORY": mps_folder,
        "CUDA_MPS_LOG_DIRECTORY": mps_folder,
    }
    return NodeGpus(bound=bound, environment=environment, mps=True)


def _value(assignment: Assignment) -> str:
    models: dict[str, int] = {}
    for gpu in assignment.gpus:
        name = f"{gpu.model} MIG {gpu.profile}" if gpu.parent else gpu.model
        models[name] = models.get(name, 0) + 1
    return " + ".join(f"{count} × {name}" for name, count in models.items()) or "none"


def _why(assignment: Assignment, sharing: Sharing, *, gpus: str, how: str) -> str:
    """Return the reason for the choice: `requested, by CDI …: 4 ranks share GPU 0 through MPS, 34 GiB per rank`."""
    if not assignment.gpus:
        return "requested for every node"
    parts = [_describe_sharing(assignment, sharing)]
    if sharing.why:
        parts.append(sharing.why)
    if len(assignment.gpus) > 1 and len(assignment.nodes) > 1:
        parts.append("nodes communicate over sockets, not NVLink")
    if assignment.left_out:
        parts.append(assignment.left_out)
    origin = "requested" if gpus != "auto" else "found on this machine"
    return f"{origin}, {how}: {'; '.join(parts)}"


def _describe_sharing(assignment: Assignment, sharing: Sharing) -> str:
    shared = [share for share in sharing.shares.values() if share.mode != OWN]
    if not shared:
        most = max(map(len, assignment.nodes), default=0)
        return "one GPU per node" if most == 1 else f"{most} GPUs per node"
    how = "through MPS" if shared[0].mode == MPS else "by time slicing"
    limits = [share.bytes_per_rank for share in shared if share.bytes_per_rank]
    each = f", {format_bytes(min(limits))} per rank" if limits else ""
    if len(assignment.gpus) == 1:
        share = shared[0]
        return f"{share.ranks} ranks share {label(share.gpu)} {how}{each}"
    counts = sorted({share.ranks for share in sharing.shares.values()})
    ranks = f"{counts[0]}" if len(counts) == 1 else f"up to {counts[-1]}"
    return f"{ranks} ranks share a GPU {how}{each}"
