"""Which GPUs does CUDA show a process of this node, and does it reach them through MPS? Asked of the driver in a process of its own.

A rank does not ask, since one that has called CUDA may not fork any more. Prints one line of JSON; stands alone, and needs no torch.
"""

from __future__ import annotations

import ctypes
import json
import uuid
from typing import Any

_MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED: contexts on this device are shared through MPS


class CudaError(Exception):
    """What the driver said no to."""


def visible() -> dict[str, Any]:
    """UUIDs in CUDA's order, without the GPU- or MIG- before them; `mps` is None where the driver cannot tell."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"uuids": [], "mps": None, "error": f"the driver's library cannot be loaded: {error}"}
    try:
        return _ask(cuda)
    except CudaError as error:
        return {"uuids": [], "mps": None, "error": str(error)}


def _ask(cuda: Any) -> dict[str, Any]:
    _check(cuda, "cuInit", 0)
    count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _check(cuda, "cuDeviceGetCount", ctypes.byref(count))
    uuids, shared = [], []
    # The second version tells a MIG slice's own UUID; older drivers have the first alone.
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
