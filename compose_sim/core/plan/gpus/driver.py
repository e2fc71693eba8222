"""Can this driver run that torch? Checked from version numbers before anything starts."""

from __future__ import annotations

import re

from compose_sim.core.host.gpus import Inventory
from compose_sim.core.host.host import PythonFacts

# The oldest driver of each major version of CUDA; within one, newer CUDA runs on older drivers (minor version compatibility).
_OLDEST_DRIVERS = {11: "450.80", 12: "525.60", 13: "580"}
_IN_A_TAG = re.compile(r"cuda[-_]?(\d+)\.(\d+)|[-+]cu(\d{2})(\d)\b")


def cuda_of_image(image: str, python: PythonFacts | None) -> str | None:
    """The CUDA that the nodes' torch was built for: "13.0", "" for none; None where it cannot be known before it runs."""
    if image == "host":
        return python.torch_cuda if python else None
    match = _IN_A_TAG.search(image)
    return f"{match[1] or match[3]}.{match[2] or match[4]}" if match else None


def why_too_old(inventory: Inventory, cuda: str | None) -> str:
    """Why the driver cannot run a torch for this CUDA; "" where it can, or where one of both is not known."""
    if not cuda or not inventory.cuda:
        return ""
    major = int(cuda.partition(".")[0])
    if inventory.cuda[0] >= major:
        return ""
    supports = ".".join(map(str, inventory.cuda))
    needs = f", which needs driver {_OLDEST_DRIVERS[major]} or newer" if major in _OLDEST_DRIVERS else ""
    return f"driver {inventory.driver} supports CUDA up to {supports}, and the nodes' torch is built for CUDA {cuda}{needs}"
