"""Does this node see the GPUs that it was given, and how do its ranks share them? Proved before the script, set up within the ranks.

COMPOSESIM_GPUS holds the planned UUIDs; COMPOSESIM_MPS, COMPOSESIM_GPU_FRACTION and COMPOSESIM_GPU_CROWD how they are shared.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from .emit import Events
from .imports import after_import
from .mps import FAILED, READY

_MPS_PATIENCE_S = 90.0
_PROOF_PATIENCE_S = 60.0
_LOOK_S = 0.02
_YIELD = 2  # cudaDeviceScheduleYield, and the driver's CU_CTX_SCHED_YIELD


class Proof:
    """The question to the driver, on its way while the launcher imports torch."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Ask nothing yet: MPS may not be up."""
        self._environment = environment
        self._planned = [each for each in environment.get("COMPOSESIM_GPUS", "").split(",") if each]
        self._joins_mps = environment.get("COMPOSESIM_MPS") == "1"

    def finish(self, events: Events, pause: Callable[[float], bool]) -> str:
        """What is wrong, which ends this node; "" where all is well. `pause` waits, and is true where the node is to end."""
        if not self._planned:
            return ""
        begun = time.monotonic()
        problem = self._await_mps(pause)
        found = {} if problem or pause(0) else self._ask(pause)
        if pause(0):  # told to end meanwhile: what was found, or was not, is of no use
            return ""
        problem = problem or self._compare(found, events.node)
        seen = {"visible": found.get("uuids", []), "mps": found.get("mps")}
        seconds = round(time.monotonic() - begun, 3)
        events.emit("gpus", planned=self._planned, message=problem, seconds=seconds, **seen)
        return problem

    def _await_mps(self, pause: Callable[[float], bool]) -> str:
        if not self._joins_mps:
            return ""
        folder = Path(self._environment["CUDA_MPS_PIPE_DIRECTORY"])
        ready, failed = folder / READY, folder / FAILED
        deadline = time.monotonic() + _MPS_PATIENCE_S
        while not ready.exists() and not pause(_LOOK_S):
            if failed.exists():
                return f"the run's MPS does not serve: {failed.read_text()}"
            if time.monotonic() > deadline:
                return f"the run's MPS has not answered within {_MPS_PATIENCE_S:g} s; what it said: logs/mps.out, docker logs"
        return ""

    def _ask(self, pause: Callable[[float], bool]) -> dict[str, Any]:
        probe = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("gpu_probe.py"))],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            universal_newlines=True,
        )
        deadline = time.monotonic() + _PROOF_PATIENCE_S
        while probe.poll() is None:
            if time.monotonic() > deadline or pause(_LOOK_S):
                probe.kill()
                probe.communicate()
                return {"error": "the driver does not answer"}
        output = probe.communicate()[0]
        try:
            found: dict[str, Any] = json.loads(output)
        except ValueError:
            return {"error": f"asking the driver ended with status {probe.returncode}"}
        return found

    def _compare(self, found: dict[str, Any], node: str) -> str:
        planned, seen = [_bare(each) for each in self._planned], found.get("uuids") or []
        if sorted(planned) != sorted(seen):
            sees = ", ".join(seen) or "no GPU"
            why = f" ({found['error']})" if found.get("error") else ""
            return f"{node} sees {sees} where {', '.join(self._planned)} was planned{why}"
        if self._joins_mps and found.get("mps") is False:
            return f"{node} does not reach its GPU through MPS, which was planned: CUDA would go on without it"
        return ""


def install() -> None:
    """In a rank: limit its GPU memory and its part of the CPUs, once the script first uses CUDA; else nothing."""
    fraction = float(os.environ.get("COMPOSESIM_GPU_FRACTION") or 0)
    crowd = os.environ.get("COMPOSESIM_GPU_CROWD", "")
    if fraction or crowd:
        after_import("torch", lambda torch: _prepare(torch, fraction, crowd))


def _prepare(torch: Any, fraction: float, crowd: str) -> None:
    """Torch begins with CUDA in one function, when something first needs it; before that a rank may still fork."""
    begin = getattr(torch._C, "_cuda_init", None)
    if begin is None:  # built without CUDA
        return

    def begin_with_our_limits() -> None:
        if crowd:
            _make_room(crowd)
        begin()
        if fraction:
            torch._C._cuda_setMemoryFraction(fraction, _own_device())

    torch._C._cuda_init = begin_with_our_limits


def _own_device() -> int:
    """The device of this rank among its node's: that of its local rank, as scripts choose theirs."""
    count = len([each for each in os.environ.get("COMPOSESIM_GPUS", "").split(",") if each])
    return int(os.environ.get("LOCAL_RANK", "0")) % max(1, count)


def _make_room(crowd: str) -> None:
    """
    Left alone, two threads of each rank spin while they wait, and many ranks on few CPUs take them from one another.

    Both of them yield, NCCL's own always; in containers the kernel lets a thread yield to those of its own container alone, so that
    each rank keeps to CPUs of its own. Threads and processes that it starts from now on do as well.
    """
    first, ranks = map(int, crowd.split("/"))
    place = first + int(os.environ.get("LOCAL_RANK", "0"))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, part_of(sorted(os.sched_getaffinity(0)), place, ranks))
    runtime = _loaded("libcudart.so")
    if runtime is not None and _own_device() == 0:
        runtime.cudaSetDeviceFlags(_YIELD)
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxSetFlags_v2(_own_device(), _YIELD)


def part_of(cpus: list[int], place: int, ranks: int) -> list[int]:
    """The CPUs of the rank at this place among so many; one that it shares where there are more ranks than CPUs."""
    if ranks >= len(cpus):
        return [cpus[place % len(cpus)]]
    return cpus[place * len(cpus) // ranks : (place + 1) * len(cpus) // ranks]


def _loaded(name: str) -> Any:
    """The library of that name that this process has loaded already: torch brings its own."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if f"/{name}" in path:
            return ctypes.CDLL(path)
    return None


def _bare(uuid: str) -> str:
    """A UUID without the kind before it."""
    return uuid.partition("-")[2].lower()
