"""Emulate CUDA and NCCL on a machine without a GPU: CPU memory with a CUDA device's name.

COMPOSESIM_EMULATED_GPUS=K sets the number of devices per node. The CPU computes, but the script sees the devices and
restrictions of CUDA. A TorchFunctionMode (tensors.py) sees every call that a script makes on tensors: it removes CUDA
devices from the arguments, lets the CPU compute, and records the emulated device of the result. torch's code below such
a call sees a real CPU, so the numbers are bit for bit those of the same script written for the CPU.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ...shared.emulation import VARIABLE, is_on
from ...shared.import_hooks import after_import
from . import failures

installed = False
# In ranks, and in processes that import the package
_NAMES = ("composesim_node.node.rank.emulate", "compose_sim.node.rank.emulate")


def install() -> None:
    """Let torch in this process and in child processes show emulated devices, if that was requested."""
    if not is_on() or any(getattr(sys.modules.get(name), "installed", False) for name in _NAMES):
        return
    global installed
    installed = True
    from . import workers

    workers.let_children_emulate()
    after_import("torch", _emulate)


def _emulate(torch: Any) -> None:
    """Set up torch, which has just been imported; modules that torch imports later have their own hooks."""
    failures.attempt(failures.require)

    def start() -> None:
        from . import emulator

        emulator.start(int(os.environ[VARIABLE]))

    failures.attempt(start)
