"""Bind GPUs to a container by name: through NVIDIA's runtime, CDI or device files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from compose_sim.core.host.gpus import Gpu, Inventory, Toolkit
from compose_sim.errors import EnvironmentMissingError

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
