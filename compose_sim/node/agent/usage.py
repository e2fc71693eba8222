"""Sample the CPU time, memory and network traffic of a node, of the cgroup in a container, else of all processes, and its GPUs.

NVML returns the utilization and memory of GPUs without setting up CUDA in this process. These values cover whole GPUs: on a shared
GPU, they include the other nodes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where v2 writes "max"

Sample = dict[str, Optional[float]]


def sample(root: int, *, contained: bool) -> Sample:
    """Return what this container, or the process `root` with all descendants, has used so far."""
    return {**(_of_container() if contained else _of_processes(root)), **_of_gpus()}


def out_of_memory_kills() -> int:
    """Return how many processes of this control group the kernel has killed for lack of memory; 0 if unknown."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {controllers: f".{path}/" for _, controllers, path in groups}
    for v2, v1 in ((own.get("", ""), own.get("memory", "")), ("", "")):  # a container may see its own group as the root
        if lines := _lines(f"{v2}memory.events") or _lines(f"memory/{v1}memory.oom_control"):
            return _count(lines, "oom_kill")
    return 0


def refused_processes() -> int:
    """Return how often this container could not start a process or thread because of the limit; 0 if unknown."""
    return _count(_lines("pids.events") or _lines("pids/pids.events"), "max")


def process_limit() -> int | None:
    """Return how many processes and threads this container may have; None if there is no limit."""
    return _number("pids.max", "pids/pids.max")


def free_processes() -> int:
    """Return how many more processes and threads this container can start; 0 if unknown."""
    return max(0, (process_limit() or 0) - (_number("pids.current", "pids/pids.current") or 0))


def _count(lines: Iterable[str], wanted: str) -> int:
    return next((int(count) for name, _, count in (line.partition(" ") for line in lines) if name == wanted), 0)


def _of_container() -> Sample:
    received, sent = _network()
    return {
        "cpu_s": _cpu_seconds(),
        "memory_bytes": _memory(),
        "memory_limit_bytes": _limit(_number("memory.max", "memory/memory.limit_in_bytes")),
        "received_bytes": received,
        "sent_bytes": sent,
    }


def _cpu_seconds() -> float:
    for line in _lines("cpu.stat"):
        if line.startswith("usage_usec "):
            return int(line.split()[1]) / 1e6
    return (_number("cpuacct/cpuacct.usage") or 0) / 1e9


def _memory() -> int:
    """Return the memory in use without inactive page cache, like `docker stats`."""
    used = _number("memory.current", "memory/memory.usage_in_bytes") or 0
    for line in _lines("memory.stat") or _lines("memory/memory.stat"):
        name, _, count = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return max(0, used - int(count))
    return used


def _network() -> tuple[int, int]:
    received = sent = 0
    for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        interface, _, counters = line.partition(":")
        if interface.strip() != "lo":
            numbers = counters.split()
            received, sent = received + int(numbers[0]), sent + int(numbers[8])
    return received, sent


def _of_processes(root: int) -> Sample:
    cpu = memory = 0
    for process in _tree(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
        except OSError:  # it has ended
            continue
        cpu += sum(map(int, fields[11:15]))  # of the process and of ended children, in user and kernel mode
        memory += (int(resident) - int(shared)) * _PAGE
    return {
        "cpu_s": cpu / _TICKS,
        "memory_bytes": memory,
        "memory_limit_bytes": None,
        "received_bytes": None,
        "sent_bytes": None,
    }


def _tree(root: int) -> Iterator[int]:
    yield root
    try:
        children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _lines(name: str) -> list[str]:
    try:
        return Path("/sys/fs/cgroup", name).read_text().splitlines()
    except OSError:  # another version of cgroups
        return []


def _number(*names: str) -> int | None:
    for name in names:
        for line in _lines(name)[:1]:
            return None if line == "max" else int(line)
    return None


def _limit(limit: int | None) -> int | None:
    return limit if limit is not None and limit < _UNLIMITED else None


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Gpus:
    """The GPUs with these UUIDs that NVML knows."""

    def __init__(self, uuids: list[str]) -> None:
        """Get a handle for each GPU, if the library is installed."""
        self._nvml: Any = None
        self._handles: list[ctypes.c_void_p] = []
        if not uuids:
            return
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._nvml.nvmlInit_v2() != 0:
            return
        for uuid in uuids:
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0:
                self._handles.append(handle)

    def sample(self) -> Sample:
        """Return the mean recent utilization, 0 to 1 (None for MIG slices), and the memory in use; {} without a GPU."""
        if not self._handles:
            return {}
        uses, used = [], 0
        for handle in self._handles:
            utilization, memory = _Utilization(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0:
                uses.append(utilization.gpu / 100)
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                used += memory.used
        return {"gpu_use": sum(uses) / len(uses) if uses else None, "gpu_memory_bytes": used}


_gpus: _Gpus | None = None


def _of_gpus() -> Sample:
    global _gpus
    if _gpus is None:
        _gpus = _Gpus([uuid for uuid in os.environ.get("COMPOSESIM_GPUS", "").split(",") if uuid])
    return _gpus.sample()
