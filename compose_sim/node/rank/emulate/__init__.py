"""How does a script written for CUDA and NCCL run where there is no GPU? On K emulated devices: CPU memory with a CUDA device's name.

COMPOSESIM_EMULATED_GPUS=K says how many each node shows. What computes is the CPU; what a script sees, and what it may not do,
is CUDA's. One mode of torch's own (TorchFunctionMode, tensors.py) sees every call that a script makes on tensors: it takes CUDA
devices out of the arguments, lets the CPU compute, and notes on which emulated device the result is. Code of torch that runs
below such a call sees an honest CPU, so the numbers are those of the same script written for the CPU, bit for bit.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ...shared.emulation import VARIABLE, is_on
from ...shared.import_hooks import after_import

installed = False
_NAMES = ("composesim_node.rank.emulate", "compose_sim.node.rank.emulate")  # in ranks, and in what imports the package


def install() -> None:
    """From now on, torch in this process and in those that it starts shows emulated devices; nothing where that was not asked for."""
    if not is_on() or any(getattr(sys.modules.get(name), "installed", False) for name in _NAMES):
        return
    global installed
    installed = True
    from . import workers

    workers.let_children_emulate()
    after_import("torch", _emulate)


def _emulate(torch: Any) -> None:
    """Torch has just been imported; what it imports itself only when it is used, has hooks of its own."""
    from . import emulator

    emulator.start(int(os.environ[VARIABLE]))
