"""Prove, before any rank starts, that this node sees the GPUs that were planned for it.

COMPOSESIM_GPUS holds the planned UUIDs; COMPOSESIM_MPS is 1 if the node shares them through MPS. The role `gpu-probe` prints which
GPUs CUDA shows to a process of this node, and whether they are shared through MPS, as one line of JSON. It is a process of its own
because one that has called CUDA may not fork any more. It needs no torch.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from ..shared import roles
from ..shared.event_log import EventLog
from .mps import FAILED, READY

_MPS_PATIENCE_S = 90.0
_PROBE_PATIENCE_S = 60.0
_POLL_S = 0.02
_MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED


class GpuProof:
    """The check of this node's GPUs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read what was planned from the environment."""
        self._environment = environment
        self._planned = [each for each in environment.get("COMPOSESIM_GPUS", "").split(",") if each]
        self._joins_mps = environment.get("COMPOSESIM_MPS") == "1"

    def finish(self, events: EventLog, pause: Callable[[float], bool]) -> str:
        """Return why this node cannot run, or "". `pause` waits, and returns True if the node was asked to stop."""
        if not self._planned:
            return ""
        begun = time.monotonic()
        problem = self._wait_for_mps(pause)
        found = {} if problem or pause(0) else self._probe(pause)
        if pause(0):
            return ""
        problem = problem or self._compare(found, events.node)
        seen = {"visible": found.get("uuids", []), "mps": found.get("mps")}
        seconds = round(time.monotonic() - begun, 3)
        events.emit("gpus", planned=self._planned, message=problem, seconds=seconds, **seen)
        return problem

    def _wait_for_mps(self, pause: Callable[[float], bool]) -> str:
        if not self._joins_mps:
            return ""
        folder = Path(self._environment["CUDA_MPS_PIPE_DIRECTORY"])
        ready, failed = folder / READY, folder / FAILED
        deadline = time.monotonic() + _MPS_PATIENCE_S
        while not ready.exists() and not pause(_POLL_S):
            if failed.exists():
                return f"MPS does not run: {failed.read_text()}"
            if time.monotonic() > deadline:
                return f"MPS has not answered within {_MPS_PATIENCE_S:g} s; see logs/mps.out in the run folder, or docker logs"
        return ""

    def _probe(self, pause: Callable[[float], bool]) -> dict[str, Any]:
        probe = subprocess.Popen(
            roles.command("gpu-probe"),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            universal_newlines=True,
        )
        deadline = time.monotonic() + _PROBE_PATIENCE_S
        while probe.poll() is None:
            if time.monotonic() > deadline or pause(_POLL_S):
                probe.kill()
                probe.communicate()
                return {"error": f"the NVIDIA driver has not answered within {_PROBE_PATIENCE_S:g} s"}
        output = probe.communicate()[0]
        try:
            found: dict[str, Any] = json.loads(output)
        except ValueError:
            return {"error": f"querying the NVIDIA driver failed with exit status {probe.returncode}"}
        return found

    def _compare(self, found: dict[str, Any], node: str) -> str:
        planned, seen = [_bare(each) for each in self._planned], found.get("uuids") or []
        if sorted(planned) != sorted(seen):
            sees = ", ".join(seen) or "no GPU"
            why = f" ({found['error']})" if found.get("error") else ""
            return f"{node} sees {sees}, but {', '.join(self._planned)} was planned{why}"
        if self._joins_mps and found.get("mps") is False:
            return f"{node} does not use its GPU through MPS, which was planned"
        return ""


def _bare(uuid: str) -> str:
    """Return a UUID without the prefix GPU- or MIG-."""
    return uuid.partition("-")[2].lower()


class CudaError(Exception):
    """A call of the driver has failed."""


def visible() -> dict[str, Any]:
    """Return UUIDs in CUDA's order, without the prefix GPU- or MIG-; `mps` is None if the driver does not know."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"uuids": [], "mps": None, "error": f"cannot load the library of the NVIDIA driver: {error}"}
    try:
        return _query(cuda)
    except CudaError as error:
        return {"uuids": [], "mps": None, "error": str(error)}


def _query(cuda: Any) -> dict[str, Any]:
    _check(cuda, "cuInit", 0)
    count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _check(cuda, "cuDeviceGetCount", ctypes.byref(count))
    uuids, shared = [], []
    # The second version returns the UUID of a MIG slice; older drivers have only the first.
    get_uuid = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    for number in range(count.value):
        _check(cuda, "cuDeviceGet", ctypes.byref(device), number)
        raw = ctypes.create_string_buffer(16)
        _check(cuda, get_uuid, raw, device)
        uuids.append(str(uuid.UUID(bytes=raw.raw)))
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), _MPS_ENABLED, device) == 0:
            shared.append(bool(value.value))
    return {"uuids": uuids, "mps": all(shared) if shared else None, "error": ""}


def _check(cuda: Any, function: str, *arguments: Any) -> None:
    code = getattr(cuda, function)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(f"{function} failed: {(text.value or b'').decode() or code}")


def main(_: list[str]) -> None:
    """Print what `visible` returns, as one line of JSON."""
    print(json.dumps(visible()))
