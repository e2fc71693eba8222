"""Compare the versions of the driver and of the CUDA that torch was built for."""

from __future__ import annotations

import re

from compose_sim.core.host.gpus import Inventory
from compose_sim.core.host.host import PythonFacts

# The oldest driver for each major version of CUDA. It runs all minor versions (minor version compatibility).
_OLDEST_DRIVERS = {11: "450.80", 12: "525.60", 13: "580"}
_IN_A_TAG = re.compile(r"cuda[-_]?(\d+)\.(\d+)|[-+]cu(\d{2})(\d)\b")


def cuda_of_image(image: str, python: PythonFacts | None) -> str | None:
    """Return the CUDA that the nodes' torch was built for, such as "13.0"; "" for none, None if that is unknown."""
    if image == "host":
        return python.torch_cuda if python else None
    match = _IN_A_TAG.search(image)
    return f"{match[1] or match[3]}.{match[2] or match[4]}" if match else None


def why_too_old(inventory: Inventory, cuda: str | None) -> str:
    """Return why the driver cannot run torch for this CUDA; "" if it can, or if a version is unknown."""
    if not cuda or not inventory.cuda:
        return ""
    major = int(cuda.partition(".")[0])
    if inventory.cuda[0] >= major:
        return ""
    supports = ".".join(map(str, inventory.cuda))
    needs = f", which needs driver {_OLDEST_DRIVERS[major]} or newer" if major in _OLDEST_DRIVERS else ""
    return f"driver {inventory.driver} supports CUDA up to {supports}, but the nodes' torch was built for CUDA {cuda}{needs}"
