"""List the GPUs of this machine with NVIDIA's management library (NVML), and what Docker can pass to containers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compose_sim.core.host.host import NO_GPUS, Gpu, Inventory, Toolkit
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import EngineSilentError

_CONTROL = Path("/dev/nvidiactl")
_DXG = Path("/dev/dxg")  # the same on WSL
_SHARED_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_DRIVER_FOLDERS = ("/usr/local/nvidia", "/usr/lib/wsl")  # folders in which a container finds a mounted driver
_LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4")
_PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


def inspect_gpus() -> Inventory:
    """Return the inventory: NO_GPUS without a driver, and with `problem` set if the driver does not respond."""
    if not (_CONTROL.exists() or _DXG.exists()):
        return NO_GPUS
    try:
        import pynvml
    except ImportError:
        return _broken("the Python package nvidia-ml-py is not installed", "pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _broken(
            f"the NVIDIA driver does not respond: {error}", "nvidia-smi; reboot if the driver has just been updated"
        )
    try:
        gpus = tuple(_gpus(pynvml))
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return Inventory(
            gpus=gpus,
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            cuda=(cuda // 1000, cuda % 1000 // 10),
            problem="" if gpus else "the NVIDIA driver lists no GPU that can compute",
            wsl=_DXG.exists(),
            toolkit=_toolkit(),
        )
    except pynvml.NVMLError as error:
        return _broken(f"the NVIDIA driver cannot describe its GPUs: {error}", "nvidia-smi")
    finally:
        pynvml.nvmlShutdown()


def _broken(problem: str, hint: str) -> Inventory:
    return Inventory(driver=_kernel_driver(), problem=problem, hint=hint, wsl=_DXG.exists())


def _gpus(nvml: Any) -> Iterator[Gpu]:
    """Yield every GPU. A GPU in MIG mode yields the slices instead, because only they can compute."""
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if _query(nvml, nvml.nvmlDeviceGetMigMode, handle, default=[0])[0]:
            yield from _slices(nvml, handle, number)
        else:
            yield _gpu(nvml, handle, index=str(number), minor=_query(nvml, nvml.nvmlDeviceGetMinorNumber, handle))


def _slices(nvml: Any, parent: Any, number: int) -> Iterator[Gpu]:
    uuid, minor = _text(nvml.nvmlDeviceGetUUID(parent)), _query(nvml, nvml.nvmlDeviceGetMinorNumber, parent)
    model, capability = _text(nvml.nvmlDeviceGetName(parent)), _capability(nvml, parent)
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        handle = _query(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, place)
        if handle is None:
            continue
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        instance, compute = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
        name = _text(nvml.nvmlDeviceGetName(handle))
        yield Gpu(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            index=f"{number}:{place}",
            model=model,
            memory_bytes=memory.total,
            used_bytes=memory.used,
            capability=capability,
            minor=minor,
            parent=uuid,
            profile=name.rpartition("MIG ")[2] if "MIG " in name else "",
            capability_files=_capability_files(minor, instance, compute),
        )


def _gpu(nvml: Any, handle: Any, *, index: str, minor: int | None) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    processes = _query(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle, default=[])
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory.total,
        used_bytes=memory.used,
        processes=tuple(f"{process.pid} {_program(process.pid)}".strip() for process in processes),
        capability=_capability(nvml, handle),
        minor=minor,
    )


def _capability(nvml: Any, handle: Any) -> tuple[int, int] | None:
    found = _query(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return (found[0], found[1]) if found else None


def _query(nvml: Any, function: Any, *arguments: Any, default: Any = None) -> Any:
    """Call an NVML function; return `default` if this GPU or this driver does not support it."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return default


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has exited, or runs in another container
        return ""


def _capability_files(minor: int | None, instance: int, compute: int) -> tuple[str, ...]:
    """Return the device files that give access to a MIG slice; the driver lists their numbers in /proc."""
    folder = Path(f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{instance}")
    files = []
    for access in (folder / "access", folder / f"ci{compute}" / "access"):
        try:
            lines = access.read_text().splitlines()
        except OSError:
            continue
        files += [
            f"/dev/nvidia-caps/nvidia-cap{line.split()[1]}" for line in lines if line.startswith("DeviceFileMinor:")
        ]
    return tuple(files)


def _kernel_driver() -> str:
    """Return the version of the kernel module, which is available even if the library does not respond."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""
    return next((word for word in first.split() if word[0].isdecimal() and "." in word), "")


def _toolkit() -> Toolkit:
    info = _docker_info()
    folders = tuple(folder for folder in _DRIVER_FOLDERS if Path(folder).is_dir())
    programs = {name: path for name in _PROGRAMS if (path := _find_program(name))}
    libraries = [path for name in _LIBRARIES if (path := _find_library(name))]
    hook = shutil.which("nvidia-container-runtime-hook")
    return Toolkit(
        runtime="nvidia" in info.get("Runtimes", {}) or (bool(info) and hook is not None),
        cdi=_cdi_names(info),
        device_files=(str(_DXG),) if _DXG.exists() else tuple(file for file in _SHARED_FILES if Path(file).exists()),
        driver_folders=folders,
        driver_files=() if folders else (*libraries, *programs.values()),
        mps_control=programs.get("nvidia-cuda-mps-control", ""),
    )


def _find_program(name: str) -> str:
    found = shutil.which(name) or next(
        (f"{folder}/bin/{name}" for folder in _DRIVER_FOLDERS if Path(folder, "bin", name).exists()), None
    )
    return found or ""


def _find_library(name: str) -> str:
    return next((f"{folder}/{name}" for folder in _LIBRARY_FOLDERS if Path(folder, name).exists()), "")


def _docker_info() -> dict[str, Any]:
    try:
        status, output = try_output_of(["docker", "info", "--format", "{{json .}}"])
        info = json.loads(output) if status == 0 else {}
    except (EngineSilentError, ValueError):
        return {}
    return info if isinstance(info, dict) and info.get("ServerVersion") else {}


def _cdi_names(info: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of NVIDIA's CDI devices as the engine reports them, or else as the CDI specifications list them."""
    discovered = [each.get("ID", "") for each in info.get("DiscoveredDevices") or [] if each.get("Source") == "cdi"]
    if discovered or not info.get("CDISpecDirs"):
        return tuple(name for name in discovered if name.startswith("nvidia.com/gpu="))
    names = []
    for folder in info["CDISpecDirs"]:
        for file in sorted(Path(folder).glob("*")) if Path(folder).is_dir() else ():
            if file.suffix in (".json", ".yaml", ".yml"):
                names += _cdi_names_of(file)
    return tuple(names)


def _cdi_names_of(file: Path) -> list[str]:
    import yaml

    try:
        specification = yaml.safe_load(file.read_text())
        if specification["kind"] != "nvidia.com/gpu":
            return []
        return [f"nvidia.com/gpu={device['name']}" for device in specification["devices"]]
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # the engine would not accept it either
        return []
