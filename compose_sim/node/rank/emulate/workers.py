"""Emulate in the threads and processes that a rank starts.

Forked processes inherit the emulation. A new Python (with multiprocessing's spawn, or as a program) finds
children/sitecustomize.py on PYTHONPATH, which sets the emulation up. A mode of torch belongs to one thread, so new
threads enter it when they start.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import wraps
from pathlib import Path
from typing import Any

_CHILDREN = str(Path(__file__).resolve().parent / "children")


def let_children_emulate() -> None:
    """Set PYTHONPATH; must be called before the script runs, and works without torch."""
    before = os.environ.get("PYTHONPATH", "")
    if _CHILDREN not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_CHILDREN, before)))


def let_threads_emulate() -> None:
    """Let every new thread enter the mode before it runs.

    The only hook, threading.setprofile, has room for one function, which may be the user's. So `start` replaces the
    thread's `run` by a function that restores it.
    """
    thread: Any = threading.Thread
    real = thread.start

    def start(self: Any) -> None:
        own_run, run = self.__dict__.get("run"), self.run

        def run_emulating() -> None:
            if own_run is None:
                self.__dict__.pop("run", None)
            else:
                self.run = own_run
            from .tensors import EmulatedCuda

            with EmulatedCuda():
                run()

        self.run = run_emulating
        real(self)

    thread.start = start


def let_futures_emulate(_: Any) -> None:
    """Patch torch.futures once it is imported: C++ calls what waits for a future in threads of its own."""
    from .tensors import resumed

    def of(real: Any) -> Any:
        return wraps(real)(lambda self, callback: real(self, resumed(callback)))

    base: Any = sys.modules["torch"]._C.Future  # also the class of what a work's get_future returns
    for name in ("then", "add_done_callback"):
        setattr(base, name, of(getattr(base, name)))


def let_calls_emulate(internal: Any) -> None:
    """Patch torch.distributed.rpc.internal once it is imported: C++ runs the calls of other ranks in threads of its own."""
    from .tensors import resumed

    if hasattr(internal, "_run_function"):
        internal._run_function = resumed(internal._run_function)


def let_queues_carry_devices(reductions: Any) -> None:
    """Patch torch.multiprocessing.reductions once it is imported, so that a tensor keeps the device in another process.

    The memory is the CPU's, and is shared as such, instead of a handle to GPU memory.
    """
    import multiprocessing.reduction

    import torch

    pickler: Any = multiprocessing.reduction.ForkingPickler
    real = reductions.reduce_tensor

    def reduce_tensor(tensor: Any) -> Any:
        tag = tensor._composesim_device
        if tag is None or tag < 0:
            return real(tensor)
        with torch._C.DisableTorchFunction():
            plain = tensor.detach()
            storage = plain.untyped_storage()  # shared with the tensor, so the tag must be removed for a moment
            before, storage._composesim_device = storage._composesim_device, None
            try:
                build, arguments = real(plain)
            finally:
                storage._composesim_device = before
        return _rebuilt, (tag, tensor.requires_grad, build, arguments)

    reductions.reduce_tensor = reduce_tensor
    for kind in [kind for kind, reducer in pickler._extra_reducers.items() if reducer is real]:
        pickler.register(kind, reduce_tensor)


def _rebuilt(tag: int, requires_grad: bool, build: Any, arguments: Any) -> Any:
    from .devices import put

    tensor = put(build(*arguments), tag)
    return tensor.requires_grad_(requires_grad) if tensor.is_leaf else tensor
