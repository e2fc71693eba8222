"""Describe the machine that a plan is made for, and its GPUs (`engine/host` gathers the facts once)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """A Python interpreter for the nodes."""

    executable: str
    prefixes: tuple[str, ...]  # folders that it needs: the virtual environment and the base installation
    packages: Mapping[str, str] = field(default_factory=dict)  # distributions of frameworks -> installed versions
    takes_packages: bool = True  # whether one may install into it: not if it belongs to a distribution (PEP 668)
    has_pip: bool = True  # not an environment that uv or `venv --without-pip` made
    torch_cuda: str | None = None  # the CUDA that torch was built for; "" for none, None if unknown

    @property
    def has_torch(self) -> bool:
        """Return whether torch is installed."""
        return "torch" in self.packages


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerFacts:
    """The Docker engine, or why none is available."""

    available: bool
    reason: str  # "Docker Engine 26.1.5, Compose 2.26.1", or what is missing
    hint: str = ""
    version: str = ""
    compose_version: str = ""
    used_subnets: tuple[str, ...] = ()
    images: tuple[str, ...] = ()  # tags of the images that `composesim image build` made
    cpus: int | None = (
        None  # the CPUs of its machine; None if it cannot limit those of a container, or if this is unknown
    )
    memory_bytes: int | None = None  # likewise
    rootless: bool = False  # runs as an ordinary user, who is root (user 0) in its containers


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine, as far as a plan depends on it. Sizes are in bytes."""

    name: str
    system: str  # "Linux"
    cpus: int
    memory_bytes: int
    free_memory_bytes: int | None = None  # available to new processes; this and the next two are None if unknown
    free_disk_bytes: int | None = None  # on the disk of the runs
    free_process_ids: int | None = None  # for processes and threads
    own_free_memory_bytes: int | None = None  # what limits of the caller leave plain processes; None if there are none
    own_free_process_ids: int | None = None
    most_neighbors: int | None = None  # entries in the kernel's table of neighbors; None if unknown
    folder: str  # the working directory, mounted on all nodes at the same path
    user_id: int  # nodes run as the caller, or as the owner of the folder if the caller is root
    group_id: int
    user_name: str
    cannot_map: str = ""  # in a project of root: why its files cannot appear as those of another user in the nodes
    python: PythonFacts | None
    docker: DockerFacts
    gpus: Inventory = NO_GPUS
    system_paths: tuple[str, ...] = field(default=())  # `--image host` mounts these besides the Python prefixes
    host_subnets: tuple[str, ...] = field(default=())
    listening: Mapping[int, str] = field(default_factory=dict)  # TCP ports of 127.0.0.1 that are in use -> by what
