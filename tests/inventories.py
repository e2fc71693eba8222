"""Inventories of machines with GPUs, as `engine/host/gpus.py` gathers them, to test the planner on machines without GPUs."""

from __future__ import annotations

from typing import Any

from compose_sim.core.host.host import NO_GPUS, Gpu, Inventory, Toolkit

H200_BYTES = 143771 << 20
RAW = Toolkit(
    device_files=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    driver_folders=("/usr/local/nvidia",),
    mps_control="/usr/local/nvidia/bin/nvidia-cuda-mps-control",
)
RUNTIME = Toolkit(
    runtime=True,
    device_files=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    driver_files=("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/bin/nvidia-cuda-mps-control"),
    mps_control="/usr/bin/nvidia-cuda-mps-control",
)
# No toolkit at all, and the driver's libraries among those of the distribution.
SCATTERED = Toolkit(
    device_files=("/dev/nvidiactl", "/dev/nvidia-uvm"),
    driver_files=("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/bin/nvidia-cuda-mps-control"),
    mps_control="/usr/bin/nvidia-cuda-mps-control",
)
CDI = Toolkit(
    cdi=("nvidia.com/gpu=all", "nvidia.com/gpu=0", "nvidia.com/gpu=1"),  # names by number, as nvidia-ctk makes them
    device_files=("/dev/nvidiactl", "/dev/nvidia-uvm"),
    driver_files=("/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
    mps_control="/usr/bin/nvidia-cuda-mps-control",
)


def uuid(number: int, kind: str = "GPU") -> str:
    """Return a UUID that contains the number of the GPU."""
    return f"{kind}-{number}e5e63e1-0cb4-4b3c-9f3a-00000000000{number}"


def a_gpu(number: int = 0, **changes: Any) -> Gpu:
    """Return an H200 that nobody uses."""
    values: dict[str, Any] = {
        "uuid": uuid(number),
        "index": str(number),
        "model": "NVIDIA H200",
        "memory_bytes": H200_BYTES,
        "used_bytes": 0,
        "capability": (9, 0),
        "minor": number,
    }
    return Gpu(**{**values, **changes})


def an_inventory(*gpus: Gpu, **changes: Any) -> Inventory:
    """Return a machine with these GPUs, and Docker with NVIDIA's runtime."""
    values: dict[str, Any] = {"gpus": gpus, "driver": "580.65.06", "cuda": (13, 0), "toolkit": RUNTIME}
    return Inventory(**{**values, **changes})


def h200s(count: int, **changes: Any) -> Inventory:
    """Return `count` equal GPUs."""
    return an_inventory(*(a_gpu(number) for number in range(count)), **changes)


def a_slice(place: int) -> Gpu:
    """Return one of the MIG slices of an A100."""
    return Gpu(
        uuid=uuid(place, "MIG"),
        index=f"0:{place}",
        model="NVIDIA A100-SXM4-40GB",
        memory_bytes=9728 << 20,
        capability=(8, 0),
        minor=0,
        parent=uuid(9),
        profile="2g.10gb",
        capability_files=(f"/dev/nvidia-caps/nvidia-cap{30 + place}", f"/dev/nvidia-caps/nvidia-cap{40 + place}"),
    )


NONE = NO_GPUS
ONE, FOUR, EIGHT = h200s(1), h200s(4), h200s(8)
MIG = an_inventory(a_slice(0), a_slice(1), a_slice(2), driver="550.90.07", cuda=(12, 4))
MIXED = an_inventory(
    a_gpu(0, model="NVIDIA GeForce GT 1030", memory_bytes=2 << 30, capability=(6, 1)),
    a_gpu(1, model="NVIDIA GeForce RTX 4090", memory_bytes=24 << 30, capability=(8, 9)),
    a_gpu(2, model="NVIDIA GeForce RTX 4090", memory_bytes=24 << 30, capability=(8, 9)),
)
BUSY = an_inventory(a_gpu(0, used_bytes=100 << 30, processes=("4711 python3",)), a_gpu(1), a_gpu(2))
BROKEN = Inventory(
    driver="535.104.05",
    problem="the NVIDIA driver does not answer: Driver/library version mismatch",
    hint="nvidia-smi; after an update of the driver: reboot",
)
WSL = an_inventory(
    a_gpu(0, model="NVIDIA GeForce RTX 3080", memory_bytes=10 << 30, capability=(8, 6), minor=None),
    wsl=True,
    toolkit=Toolkit(device_files=("/dev/dxg",), driver_folders=("/usr/lib/wsl",)),
)
OLD_DRIVER = h200s(1, driver="535.104.05", cuda=(12, 2))
ALL = {
    "none": NONE, "one": ONE, "four": FOUR, "eight": EIGHT, "mig": MIG, "mixed": MIXED, "busy": BUSY, "broken": BROKEN,
    "wsl": WSL, "old-driver": OLD_DRIVER,
}  # fmt: skip
