"""Check whether this node shows emulated CUDA devices."""

from __future__ import annotations

import os

VARIABLE = "COMPOSESIM_EMULATED_GPUS"  # the number of devices per node
WORDS = "emulated on the CPU"


def is_on() -> bool:
    """Return whether this process shows emulated devices."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")
