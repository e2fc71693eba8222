"""Assign the requested GPUs to nodes or report how many are missing, and bind them to containers by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compose_sim.core.host.host import Gpu, Inventory
from compose_sim.errors import SpecError

if TYPE_CHECKING:  # importing pydantic is slow, and commands that only read a run do not need it
    from compose_sim.core.request.spec import ClusterSpec
import re
from pathlib import PurePosixPath

from compose_sim.core.host.host import PythonFacts, Toolkit
from compose_sim.core.text import format_bytes
from compose_sim.errors import EnvironmentMissingError


def named_gpus(text: str, inventory: Inventory) -> tuple[Gpu, ...]:
    """Return the GPUs that `0,1`, or UUIDs or their prefixes, name. A SpecError lists the GPUs of this machine."""
    require_gpus(inventory, f"--gpus {text}")
    return tuple(_one(name, inventory) for name in text.split(","))


def require_gpus(inventory: Inventory, asked: str) -> None:
    """Raise EnvironmentMissingError if there is no GPU for `asked`."""
    if inventory.gpus:
        return
    why = inventory.problem or "this machine has none"
    hint = inventory.hint or "composesim up --gpus emulated …, which emulates CUDA on the CPU"
    raise EnvironmentMissingError(f"'{asked}' needs an NVIDIA GPU: {why}", hint=hint)


def eligible_gpus(inventory: Inventory) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that `auto` uses, and why not the others: those of one model, and no busy ones if any is free."""
    by_model: dict[str, list[Gpu]] = {}
    for gpu in inventory.gpus:
        by_model.setdefault(f"{gpu.model} {gpu.profile}".strip(), []).append(gpu)
    model = max(by_model, key=lambda name: sum(gpu.memory_bytes for gpu in by_model[name]), default="")
    chosen = by_model.get(model, [])
    free = [gpu for gpu in chosen if not gpu.is_busy]
    left_out = [f"the {name} is another model" for name in by_model if name != model]
    left_out += [
        f"{label(gpu)} is busy ({format_bytes(gpu.used_bytes)} used by {', '.join(gpu.processes[:3])})"
        for gpu in chosen
        if gpu.is_busy and free
    ]
    return tuple(free or chosen), "; ".join(left_out)


def label(gpu: Gpu) -> str:
    """Return `GPU 0` or `MIG slice 0:1`."""
    return f"MIG slice {gpu.index}" if gpu.parent else f"GPU {gpu.index}"


def _one(name: str, inventory: Inventory) -> Gpu:
    found = [gpu for gpu in inventory.gpus if gpu.index == name or gpu.uuid == name]
    found = found or [gpu for gpu in inventory.gpus if "-" in name and gpu.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    problem = f"'{name}' is a prefix of {len(found)} UUIDs" if found else f"this machine has no GPU '{name}'"
    slices = [gpu for gpu in inventory.gpus if gpu.parent and (gpu.parent == name or gpu.index.startswith(f"{name}:"))]
    if slices:
        problem = f"GPU '{name}' is divided into MIG slices: name one of those"
    listed = "\n".join(f"{gpu.index:>4}  {gpu.uuid}  {gpu.model} {gpu.profile}".rstrip() for gpu in inventory.gpus)
    raise SpecError(problem, evidence=listed, hint=f"composesim up --gpus {inventory.gpus[0].index} …")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The GPUs of each node, in the order of the nodes, and the users of each GPU."""

    nodes: tuple[tuple[Gpu, ...], ...]
    left_out: str  # GPUs that `auto` does not use, with reasons
    ranks: dict[str, int]  # by UUID
    sharers: dict[str, tuple[str, ...]]  # the nodes that see a GPU, by UUID

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return each GPU that any node sees once, in the order of first use."""
        return tuple({gpu.uuid: gpu for node in self.nodes for gpu in node}.values())


def assign(spec: ClusterSpec, inventory: Inventory) -> Assignment:
    """
    Spread the nodes evenly over the GPUs that `--gpus` selects ("auto", "all" or names), by default one GPU per rank.

    Each node gets the GPUs with the fewest ranks so far, so nodes share GPUs only if there are too few.
    Raises SpecError if a node requests more GPUs than there are.
    """
    pool, left_out = inventory.gpus, ""
    if spec.gpus == "auto":
        pool, left_out = eligible_gpus(inventory)
    elif spec.gpus != "all":
        pool = named_gpus(spec.gpus, inventory)
    load: Counter[str] = Counter()
    sharers: dict[str, tuple[str, ...]] = {}
    nodes = []
    for number, own in enumerate(spec.node_specs):
        node, ranks = f"node-{number}", own.nproc_per_node or spec.nproc_per_node
        if own.gpus:
            chosen = () if own.gpus == "none" else named_gpus(own.gpus, inventory)
        else:
            chosen = _least_used(node, ranks, spec.gpus_per_node, pool, load)
        _require_one_slice(node, chosen)
        for gpu in chosen:  # a rank may compute on several of them
            load[gpu.uuid] += -(-ranks // len(chosen))
            sharers[gpu.uuid] = (*sharers.get(gpu.uuid, ()), node)
        nodes.append(chosen)
    return Assignment(nodes=tuple(nodes), left_out=left_out, ranks=dict(load), sharers=sharers)


def _least_used(
    node: str, ranks: int, per_node: int | None, pool: Sequence[Gpu], load: Counter[str]
) -> tuple[Gpu, ...]:
    wanted = per_node or ranks
    if wanted > len(pool):
        there = "there is 1 GPU" if len(pool) == 1 else f"there are {len(pool)} GPUs"
        if per_node:
            raise SpecError(
                f"{per_node} GPUs per node are too many: {there}",
                hint=f"composesim up --gpus-per-node {len(pool)} …, or --gpus emulated",
            )
        raise SpecError(
            f"{node} needs {ranks} GPUs, one per rank, and {there}: NCCL refuses two ranks of one node on one GPU",
            hint=f"composesim up --nodes {wanted} --nproc-per-node 1 …, as nodes can share a GPU; or --gpus emulated",
        )
    order = sorted(range(len(pool)), key=lambda number: (load[pool[number].uuid], number))
    return tuple(pool[number] for number in sorted(order[:wanted]))


def _require_one_slice(node: str, chosen: Sequence[Gpu]) -> None:
    """Raise SpecError for several MIG slices: CUDA shows a process only one."""
    if len(chosen) > 1 and any(gpu.parent for gpu in chosen):
        slices = ", ".join(label(gpu) for gpu in chosen)
        raise SpecError(
            f"{node} would see {slices}, and CUDA shows a process only one MIG slice",
            hint=f"composesim up --nodes {len(chosen)} --gpus-per-node 1 …",
        )


# The oldest driver for each major version of CUDA. It runs all minor versions (minor version compatibility).
_OLDEST_DRIVERS = {11: "450.80", 12: "525.60", 13: "580"}
_IN_A_TAG = re.compile(r"cuda[-_]?(\d+)\.(\d+)|[-+]cu(\d{2})(\d)\b")


def cuda_of_image(image: str, python: PythonFacts | None) -> str | None:
    """Return the CUDA that the nodes' torch was built for, such as "13.0"; "" for none, None if that is unknown."""
    if image == "host":
        return python.torch_cuda if python else None
    match = _IN_A_TAG.search(image)
    return f"{match[1] or match[3]}.{match[2] or match[4]}" if match else None


def why_too_old(inventory: Inventory, cuda: str | None) -> str:
    """Return why the driver cannot run torch for this CUDA; "" if it can, or if a version is unknown."""
    if not cuda or not inventory.cuda:
        return ""
    major = int(cuda.partition(".")[0])
    if inventory.cuda[0] >= major:
        return ""
    supports = ".".join(map(str, inventory.cuda))
    needs = f", which needs driver {_OLDEST_DRIVERS[major]} or newer" if major in _OLDEST_DRIVERS else ""
    return f"driver {inventory.driver} supports CUDA up to {supports}, but the nodes' torch was built for CUDA {cuda}{needs}"


NVIDIA, CDI, RAW, VARIABLES = "nvidia", "cdi", "raw", "variables"
_CDI_KIND = "nvidia.com/gpu="
_UVM = "/dev/nvidia-uvm"
_DRIVER = "/usr/local/nvidia"  # images look here for a driver that is mounted into them


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The GPUs of one container, as devices reserved by name or as device files."""

    uuids: tuple[str, ...]  # in the order in which processes see them
    driver: str = ""  # of the reservation: "nvidia" or "cdi"; "" for device files
    device_ids: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()


def choose_binding(
    inventory: Inventory, *, contained: bool, needed: Sequence[Gpu] = (), own_driver: bool = False
) -> tuple[str, str]:
    """
    Return how to bind the GPUs `needed`, and a description: the first way that this machine offers.

    If `own_driver`, containers see this machine's /usr and the driver in it. NVIDIA's runtime is not used then, because it
    would mount another driver over these read-only files.
    """
    toolkit = inventory.toolkit
    if not contained:
        return VARIABLES, "by CUDA_VISIBLE_DEVICES"
    has_driver = bool(toolkit.driver_folders or toolkit.driver_files)
    if own_driver and toolkit.device_files and has_driver:
        _require_files(inventory)
        return RAW, "by device files, as nodes see this machine's driver"
    if toolkit.runtime:
        return NVIDIA, "by Docker's NVIDIA runtime"
    if toolkit.cdi and (not needed or all(_cdi_name(gpu, toolkit.cdi) for gpu in needed)):
        return CDI, "by CDI, as Docker has no NVIDIA runtime"
    if toolkit.device_files and has_driver:
        _require_files(inventory)
        return (
            RAW,
            "by device files and the driver's libraries, as Docker has neither an NVIDIA runtime nor CDI devices",
        )
    missing = "the driver's libraries" if toolkit.device_files else "device files such as /dev/nvidiactl"
    raise EnvironmentMissingError(
        f"containers cannot use a GPU: Docker has no NVIDIA runtime and no CDI devices, and {missing} were not found",
        hint="install nvidia-container-toolkit, or composesim up --engine local …",
    )


def _require_files(inventory: Inventory) -> None:
    """Raise EnvironmentMissingError if a device file that CUDA opens has not been created since the machine started."""
    if not inventory.wsl and _UVM not in inventory.toolkit.device_files:
        raise EnvironmentMissingError(
            f"containers cannot use a GPU: '{_UVM}', which CUDA opens, does not exist yet",
            hint="sudo nvidia-modprobe -c 0 -u",
        )


def bind(gpus: Sequence[Gpu], inventory: Inventory, form: str) -> Bound:
    """Return the GPUs bound in one of the ways that `choose_binding` returns."""
    uuids = tuple(gpu.uuid for gpu in gpus)
    toolkit = inventory.toolkit
    if form == NVIDIA:
        return Bound(uuids=uuids, driver="nvidia", device_ids=uuids)
    if form == CDI:
        return Bound(uuids=uuids, driver="cdi", device_ids=tuple(_cdi_name(gpu, toolkit.cdi) for gpu in gpus))
    if form == RAW:
        return Bound(uuids=uuids, device_files=tuple(dict.fromkeys((*_device_files(gpus), *toolkit.device_files))))
    return Bound(uuids=uuids)


def binding_environment(bound: Bound | None, inventory: Inventory) -> dict[str, str]:
    """Return the variables for CUDA and NVIDIA's container runtime. Without `bound`, or without UUIDs in it, they hide all GPUs."""
    uuids = ",".join(bound.uuids) if bound else ""
    environment = {"CUDA_VISIBLE_DEVICES": uuids}
    if not inventory.toolkit.runtime and not inventory.toolkit.cdi:
        return environment
    # An image may request all GPUs from NVIDIA's runtime. `void` requests none, for use with another way of binding.
    named = uuids if bound and bound.driver == "nvidia" and uuids else "void"
    return environment | {"NVIDIA_VISIBLE_DEVICES": named, "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


def driver_mounts(toolkit: Toolkit, *, visible: Sequence[str]) -> dict[str, str]:
    """Return the mounts of the driver that a container needs, source to target, without what is in `visible` folders."""
    wanted = {folder: folder for folder in toolkit.driver_folders}
    for file in toolkit.driver_files:
        wanted[file] = f"{_DRIVER}/{'lib64' if '.so' in PurePosixPath(file).name else 'bin'}/{PurePosixPath(file).name}"
    return {
        source: target
        for source, target in wanted.items()
        if not any(PurePosixPath(source).is_relative_to(folder) for folder in visible)
    }


def library_path(toolkit: Toolkit) -> str:
    """Return LD_LIBRARY_PATH for the mounted driver."""
    folders = toolkit.driver_folders or (_DRIVER,)
    return ":".join(
        f"{folder}/{name}" for folder in folders for name in (("lib",) if "wsl" in folder else ("lib64", "lib"))
    )


def _device_files(gpus: Sequence[Gpu]) -> list[str]:
    files = [f"/dev/nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None]
    return files + [file for gpu in gpus for file in gpu.capability_files]


def _cdi_name(gpu: Gpu, names: Sequence[str]) -> str:
    """Return the name of a device in the CDI specification, by UUID or by number, or ""."""
    wanted = (f"{_CDI_KIND}{gpu.uuid}", f"{_CDI_KIND}{gpu.index}")
    return next((name for name in wanted if name in names), "")
