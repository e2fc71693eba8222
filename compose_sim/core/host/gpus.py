"""What GPUs does this machine have, and what could hand them to a container? Facts only, gathered by `engine/host/gpus.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG slice of one (then `parent` is the whole GPU's UUID). Sizes in bytes."""

    uuid: str  # "GPU-…" or "MIG-…"
    index: str  # "0"; the second slice of GPU 0 is "0:1"
    model: str
    memory_bytes: int
    used_bytes: int = 0  # by others, before the run
    processes: tuple[str, ...] = ()  # of others: "4711 python3"
    capability: tuple[int, int] | None = None  # compute capability
    minor: int | None = None  # N of /dev/nvidiaN
    parent: str = ""
    profile: str = ""  # of a MIG slice: "1g.10gb"
    capability_files: tuple[str, ...] = ()  # of a MIG slice: /dev/nvidia-caps/…, without which it cannot be opened

    @property
    def free_bytes(self) -> int:
        """What nobody uses yet."""
        return self.memory_bytes - self.used_bytes

    @property
    def is_busy(self) -> bool:
        """Whether somebody computes on it."""
        return bool(self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """What could give a container the GPUs. Paths of this machine."""

    runtime: bool = False  # Docker has NVIDIA's runtime or hook
    cdi: tuple[str, ...] = ()  # names of CDI devices that the engine takes: "nvidia.com/gpu=0"
    device_files: tuple[
        str, ...
    ] = ()  # what every container needs beside /dev/nvidiaN: /dev/nvidiactl, /dev/nvidia-uvm
    driver_folders: tuple[str, ...] = ()  # where the driver's libraries have folders of their own: /usr/local/nvidia
    driver_files: tuple[str, ...] = ()  # where they lie among others: libcuda.so.1 and what belongs to it
    mps_control: str = ""  # nvidia-cuda-mps-control


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs that a process of this machine can compute on; where a GPU is cut into MIG slices, those."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""  # "580.65.06"; empty where there is none
    cuda: tuple[int, int] | None = None  # the newest CUDA that the driver supports
    problem: str = ""  # why a driver that is there does not answer
    hint: str = ""
    wsl: bool = False  # Windows Subsystem for Linux: no MPS, no device files a GPU
    toolkit: Toolkit = Toolkit()


NO_GPUS = Inventory()
