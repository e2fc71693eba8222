"""How does a container come by its GPUs: by NVIDIA's runtime, CDI, or device files? Always by name, never by count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from compose_sim.core.host.gpus import Gpu, Inventory, Toolkit
from compose_sim.errors import EnvironmentMissingError

NVIDIA, CDI, RAW, VARIABLES = "nvidia", "cdi", "raw", "variables"
_CDI_KIND = "nvidia.com/gpu="
_UVM = "/dev/nvidia-uvm"
_DRIVER = "/usr/local/nvidia"  # where images look for a driver that is mounted into them


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The GPUs of one service: a reservation of named devices with a driver, or device files."""

    uuids: tuple[str, ...]  # as the processes inside see them, in order
    driver: str = ""  # "nvidia", "cdi"; "" where device files do
    device_ids: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()


def choose_binding(
    inventory: Inventory, *, contained: bool, needed: Sequence[Gpu] = (), own_driver: bool = False
) -> tuple[str, str]:
    """
    The form, and why: what the engine offers, in the order of how widely it works. `needed` are the GPUs to be bound.

    `own_driver` says that containers see this machine's /usr, and in it the driver: NVIDIA's runtime, which would put another one over
    those read-only files, is then not asked.
    """
    toolkit = inventory.toolkit
    if not contained:
        return VARIABLES, "by CUDA_VISIBLE_DEVICES"
    has_driver = bool(toolkit.driver_folders or toolkit.driver_files)
    if own_driver and toolkit.device_files and has_driver:
        _require_files(inventory)
        return RAW, "by device files, since nodes see this machine's own driver"
    if toolkit.runtime:
        return NVIDIA, "by Docker's NVIDIA runtime"
    if toolkit.cdi and (not needed or all(_cdi_name(gpu, toolkit.cdi) for gpu in needed)):
        return CDI, "by CDI, since Docker has no NVIDIA runtime"
    if toolkit.device_files and has_driver:
        _require_files(inventory)
        return (
            RAW,
            "by device files and the driver's libraries, since Docker has neither an NVIDIA runtime nor CDI devices",
        )
    missing = "the driver's libraries" if toolkit.device_files else "device files such as /dev/nvidiactl"
    raise EnvironmentMissingError(
        f"containers cannot be given a GPU: Docker has no NVIDIA runtime and no CDI devices, and {missing} were not found",
        hint="install nvidia-container-toolkit, or composesim up --engine local …",
    )


def _require_files(inventory: Inventory) -> None:
    """EnvironmentMissingError where a device file that CUDA opens has not been made yet since the machine started."""
    if not inventory.wsl and _UVM not in inventory.toolkit.device_files:
        raise EnvironmentMissingError(
            f"containers cannot be given a GPU: '{_UVM}', which CUDA opens, is not there yet",
            hint="sudo nvidia-modprobe -c 0 -u",
        )


def bind(gpus: Sequence[Gpu], inventory: Inventory, form: str) -> Bound:
    """One service's part in the document."""
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
    """What CUDA and NVIDIA's container runtime are told; `bound` is None, or without UUIDs, for a node that is to see no GPU."""
    uuids = ",".join(bound.uuids) if bound else ""
    environment = {"CUDA_VISIBLE_DEVICES": uuids}
    if not inventory.toolkit.runtime and not inventory.toolkit.cdi:
        return environment
    # An image may ask NVIDIA's runtime for all GPUs; `void` asks it for none, where another one hands them out.
    named = uuids if bound and bound.driver == "nvidia" and uuids else "void"
    return environment | {"NVIDIA_VISIBLE_DEVICES": named, "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


def driver_mounts(toolkit: Toolkit, *, visible: Sequence[str]) -> dict[str, str]:
    """What a container must see of the driver beside device files: source and target, less what lies in `visible` folders."""
    wanted = {folder: folder for folder in toolkit.driver_folders}
    for file in toolkit.driver_files:
        wanted[file] = f"{_DRIVER}/{'lib64' if '.so' in PurePosixPath(file).name else 'bin'}/{PurePosixPath(file).name}"
    return {
        source: target
        for source, target in wanted.items()
        if not any(PurePosixPath(source).is_relative_to(folder) for folder in visible)
    }


def library_path(toolkit: Toolkit) -> str:
    """LD_LIBRARY_PATH for the mounted driver."""
    folders = toolkit.driver_folders or (_DRIVER,)
    return ":".join(
        f"{folder}/{name}" for folder in folders for name in (("lib",) if "wsl" in folder else ("lib64", "lib"))
    )


def bound_from_dict(values: Mapping[str, Any] | None) -> Bound | None:
    """The value that its JSON was made from."""
    if not values:
        return None
    lists = {key: tuple(values[key]) for key in ("uuids", "device_ids", "device_files")}
    return Bound(driver=values["driver"], **lists)


def _device_files(gpus: Sequence[Gpu]) -> list[str]:
    files = [f"/dev/nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None]
    return files + [file for gpu in gpus for file in gpu.capability_files]


def _cdi_name(gpu: Gpu, names: Sequence[str]) -> str:
    """The engine's name of a device: by UUID where the specification has one, else by its number."""
    wanted = (f"{_CDI_KIND}{gpu.uuid}", f"{_CDI_KIND}{gpu.index}")
    return next((name for name in wanted if name in names), "")
