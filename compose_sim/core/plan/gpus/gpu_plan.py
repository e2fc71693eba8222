"""Plan the GPUs of a run: which each node sees, how ranks share one, and the variables of nodes and of the MPS daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compose_sim.core.host.host import Gpu, Host, Inventory
from compose_sim.core.plan.gpus.assignment import (
    RAW,
    VARIABLES,
    Assignment,
    Bound,
    assign,
    bind,
    binding_environment,
    choose_binding,
    driver_mounts,
    label,
    library_path,
)
from compose_sim.core.text import format_bytes

if TYPE_CHECKING:  # importing pydantic is slow, and commands that only read a run do not need it
    from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import EnvironmentMissingError, SpecError

OWN, MPS, TIMESLICE = "own", "mps", "timeslice"
# Estimate for the CUDA context and the NCCL buffers of a rank, which the limit of the allocator does not cover.
CONTEXT_BYTES = 512 << 20
_MIN_BYTES = CONTEXT_BYTES + (128 << 20)
_MAX_CLIENTS, _MAX_CLIENTS_BEFORE_TURING = 48, 16
_VOLTA, _TURING = (7, 0), (7, 5)
# A waiting rank keeps two threads busy: the script's, and NCCL's, which moves data between sockets.
_BUSY_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How ranks use one GPU."""

    gpu: Gpu
    mode: str
    ranks: int
    bytes_per_rank: int | None  # None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The share of each GPU, by UUID, and why shared GPUs are not shared through MPS."""

    shares: Mapping[str, Share]
    why: str = ""


def decide_sharing(assignment: Assignment, inventory: Inventory, *, share: str, gpu_memory: int | None) -> Sharing:
    """
    Return the mode and the memory of each GPU. `share` and `gpu_memory` (bytes per rank) are as in the spec.

    Raises SpecError if ranks do not fit on a GPU, and EnvironmentMissingError if MPS was requested and does not work here.
    """
    shared = [gpu for gpu in assignment.gpus if assignment.ranks[gpu.uuid] > 1]
    if shared and share == "off":
        gpu = shared[0]
        raise SpecError(
            f"{assignment.ranks[gpu.uuid]} ranks would share {label(gpu)}, which '--share off' forbids",
            evidence=f"{label(gpu)} is used by {', '.join(assignment.sharers[gpu.uuid])}",
            hint=f"composesim up --nodes {len(assignment.gpus)} …, or leave --share out",
        )
    without_mps = next((reason for gpu in shared if (reason := why_no_mps(gpu, inventory))), "")
    if shared and share == "mps" and without_mps:
        raise EnvironmentMissingError(
            f"'--share mps' does not work here: {without_mps}", hint="composesim up --share timeslice …"
        )
    mode = TIMESLICE if share == "timeslice" or without_mps else MPS
    shares = {}
    for gpu in assignment.gpus:
        ranks = assignment.ranks[gpu.uuid]
        if ranks > 1 and mode == MPS:
            _require_clients(gpu, ranks)
        limit = _bytes_per_rank(gpu, ranks, gpu_memory)
        shares[gpu.uuid] = Share(gpu=gpu, mode=mode if ranks > 1 else OWN, ranks=ranks, bytes_per_rank=limit)
    reason = "requested" if share == "timeslice" else without_mps
    slow = f"{reason}, so ranks use time slicing: on an H200, a step of 8 nodes took 161 ms, and 5.3 ms with MPS"
    return Sharing(shares=shares, why="" if not shared or mode == MPS else slow)


def crowds_cpus(sharing: Sharing, *, ranks: int, cpus: int) -> bool:
    """Return whether ranks share GPUs and are too many for the CPUs to wait in busy loops."""
    return any(share.ranks > 1 for share in sharing.shares.values()) and _BUSY_THREADS * ranks >= cpus


def why_no_mps(gpu: Gpu, inventory: Inventory) -> str:
    """Return why ranks cannot share this GPU through MPS, or "" if they can."""
    if inventory.wsl:
        return "WSL does not support MPS"
    if not inventory.toolkit.mps_control:
        return "nvidia-cuda-mps-control is not on this machine"
    if gpu.parent:
        return f"composesim does not support MPS on MIG slices ({label(gpu)})"
    if gpu.capability and gpu.capability < _VOLTA:
        return f"{gpu.model} is older than Volta"
    return ""


def _require_clients(gpu: Gpu, ranks: int) -> None:
    most = _MAX_CLIENTS_BEFORE_TURING if gpu.capability and gpu.capability < _TURING else _MAX_CLIENTS
    if ranks > most:
        raise SpecError(
            f"{ranks} ranks on {label(gpu)} are more than the {most} clients that MPS supports on one GPU",
            hint=f"composesim up --nodes {most} …, more GPUs, or --share timeslice (slow)",
        )


def _bytes_per_rank(gpu: Gpu, ranks: int, asked: int | None) -> int | None:
    """Return the limit of a rank, or None if it has the GPU to itself and no limit was requested."""
    free, each = gpu.free_bytes, gpu.free_bytes // ranks
    of = f"{label(gpu)} has {format_bytes(free)} of {format_bytes(gpu.memory_bytes)} free"
    if asked is not None:
        if asked * ranks > free:
            raise SpecError(
                f"{ranks} ranks with {format_bytes(asked)} of GPU memory each do not fit: {of}",
                hint=f"composesim up --gpu-memory {each >> 20}m …",
            )
        each = asked
    if each < _MIN_BYTES:
        taken = f"CUDA and NCCL need about {format_bytes(CONTEXT_BYTES)} of it"
        raise SpecError(
            f"{format_bytes(each)} of GPU memory for each of {ranks} ranks on {label(gpu)} is too little: {taken}",
            evidence=of,
            hint=f"composesim up --nodes {max(1, free // _MIN_BYTES)} …, or --gpus emulated",
        )
    return each if ranks > 1 or asked is not None else None


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
