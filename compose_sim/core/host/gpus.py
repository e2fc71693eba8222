"""Describe the GPUs of this machine and the ways to pass them to a container (`engine/host/gpus.py` gathers the facts)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG slice (then `parent` is the UUID of the GPU). Sizes are in bytes."""

    uuid: str  # "GPU-…" or "MIG-…"
    index: str  # "0"; the second slice of GPU 0 is "0:1"
    model: str
    memory_bytes: int
    used_bytes: int = 0  # by other programs, before the run
    processes: tuple[str, ...] = ()  # other programs that use it: "4711 python3"
    capability: tuple[int, int] | None = None  # compute capability
    minor: int | None = None  # N of /dev/nvidiaN
    parent: str = ""
    profile: str = ""  # of a MIG slice: "1g.10gb"
    capability_files: tuple[str, ...] = ()  # of a MIG slice: /dev/nvidia-caps/…, needed to open it

    @property
    def free_bytes(self) -> int:
        """Return the memory that no other program uses."""
        return self.memory_bytes - self.used_bytes

    @property
    def is_busy(self) -> bool:
        """Return whether another program computes on it."""
        return bool(self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """The ways to pass GPUs to a container. Paths are those of this machine."""

    runtime: bool = False  # Docker has NVIDIA's runtime or hook
    cdi: tuple[str, ...] = ()  # names of CDI devices that the engine knows: "nvidia.com/gpu=0"
    device_files: tuple[str, ...] = ()  # that containers need besides /dev/nvidiaN: /dev/nvidiactl, /dev/nvidia-uvm
    driver_folders: tuple[str, ...] = ()  # with the driver only: /usr/local/nvidia
    driver_files: tuple[str, ...] = ()  # of the driver, if its folders hold other files too: libcuda.so.1
    mps_control: str = ""  # nvidia-cuda-mps-control


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs that a process on this machine can use. A GPU with MIG slices is represented by these."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""  # "580.65.06", or "" for none
    cuda: tuple[int, int] | None = None  # the newest CUDA that the driver supports
    problem: str = ""  # why the installed driver does not answer
    hint: str = ""
    wsl: bool = False  # Windows Subsystem for Linux: no MPS, and no device file per GPU
    toolkit: Toolkit = Toolkit()


NO_GPUS = Inventory()
