"""How do the threads and processes that a rank starts emulate as well?

Forked processes have it already. A new Python (multiprocessing's spawn, or a program) reads PYTHONPATH before all else, and there
finds children/sitecustomize.py, which sets the emulation up as in the rank. A mode of torch's is one thread's: new threads get it
as they begin.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

_CHILDREN = str(Path(__file__).resolve().parent / "children")


def let_children_emulate() -> None:
    """To be called before the script runs; torch need not be there."""
    before = os.environ.get("PYTHONPATH", "")
    if _CHILDREN not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_CHILDREN, before)))


def let_threads_emulate() -> None:
    """
    Have every new thread enter the mode before it runs.

    There is no hook that does not take the place of the person's own (threading.setprofile has one place); so `start` puts a
    function in the place of the thread's `run`, which puts it back.
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


def let_queues_carry_devices(reductions: Any) -> None:
    """
    Once torch.multiprocessing.reductions is there: a tensor that goes to another process arrives on its device.

    CUDA's way, a handle to memory of the GPU, is not there; the memory is the CPU's and is shared as such.
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
            storage = plain.untyped_storage()  # the tensor's own: while it is looked at, it is the CPU's
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
    from .tags import put

    tensor = put(build(*arguments), tag)
    return tensor.requires_grad_(requires_grad) if tensor.is_leaf else tensor
