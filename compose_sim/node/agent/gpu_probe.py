"""Print which GPUs CUDA shows to a process of this node, and whether they are shared through MPS, as one line of JSON.

This is a separate process because one that has called CUDA may not fork any more. It needs no torch.
"""

from __future__ import annotations

import ctypes
import json
import uuid
from typing import Any

_MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED


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
