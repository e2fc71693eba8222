"""Let a process exit without taking torch apart, such as a rank that was forked from a process with torch.

At exit, Python and C++ free piece by piece what a process has loaded, although the kernel frees all of it anyway. In a
forked process this copies most pages that it shares with its parent. Row 10 of bench/results.md, "ranks exit", shows what is
left. Whatever the script made ends as in any Python: open files are flushed, exit handlers and destructors run. The
exception is an object that only torch's own modules refer to: it is not destroyed. With Triton, everything is destroyed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """
    Leave torch, imported in this context, as it is when this process or one forked from it exits.

    This does nothing on a machine with an NVIDIA GPU: CUDA's destructors may hang, and a user should see that here too.
    """
    if Path("/dev/nvidiactl").exists():
        yield
        return
    modules: list[str] = []
    atexit.register(_keep, modules)  # before the handlers of torch and of the script, so that it runs after them
    yield
    modules += (name for name in sys.modules if name.partition(".")[0] == "torch")
    for finalizer in tuple(weakref.finalize._registry):  # type: ignore[attr-defined]  # there is no public way to list them
        finalizer.atexit = False
    _leave_out_destructors()


def _keep(names: list[str]) -> None:
    """Hide modules from the interpreter, which sets every variable of those that it knows to None."""
    # Triton prints a list of its objects that are still alive at the end, and torch's modules refer to some.
    if "triton._C.libtriton" in sys.modules:
        gc.unfreeze()
        return
    if gc.isenabled():
        gc.collect()  # as the interpreter does next: a destructor may still import torch
    for each in gc.get_objects():
        if issubclass(type(each), _WRITERS):
            with contextlib.suppress(Exception):
                each.flush()  # it may belong to what is not destroyed, such as a hook that torch knows
    kept = [sys.modules.pop(name) for name in names if name in sys.modules]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _leave_out_destructors() -> None:
    """
    Leave out the destructors of the C++ libraries loaded so far.

    Python's own exit, C's buffers and the destructors of libraries that a script loads later are not affected: handlers run in
    reverse order, and this one ends the process with its exit code.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # only glibc has them
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc._IO_flush_all, None)
