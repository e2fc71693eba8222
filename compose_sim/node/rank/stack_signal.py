"""How can an agent learn where a rank stands, when the rank runs no code any more and must not be disturbed? By a signal.

The C handler of `faulthandler` writes the stacks of all threads down without the interpreter's lock, whatever holds it. The
signal goes to a thread of ours that does nothing but wait for it, so that no call of the person's threads is cut short by it.
"""

from __future__ import annotations

import _thread
import faulthandler
import fcntl
import os
import signal

from ..shared.progress_page import STACKS_SIGNAL, ProgressPage

_LEAST_DESCRIPTOR = 500  # out of the way: the script's own files get the numbers they would get without us

_progress: ProgressPage | None = None
_process = 0


def install(progress: ProgressPage) -> None:
    """Make the stacks of this process, and of those it will fork, available. To be called in the rank's main thread."""
    global _progress, _process
    try:
        opened = os.open(progress.stacks_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:  # a rank without a folder to write to is trained like any other
        return
    descriptor = _out_of_the_way(opened)
    faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
    progress.set("main_thread", _thread.get_ident())
    progress.set("descriptor", descriptor)
    _progress, _process = progress, os.getpid()


def start_helper() -> None:
    """
    Start the thread that takes the signal, once.

    Not before the script has threads anyway, which it has when it makes its process group: a process with several threads is
    warned by Python when it forks. `_thread`, so that `threading` does not list it and nobody waits for its end.
    """
    if _progress is not None and os.getpid() == _process and not _progress.get("helper"):
        _progress.set("helper", _process)  # until the thread itself says better: a second call must start no second one
        _thread.start_new_thread(_wait_for_signals, (_progress,))


def _wait_for_signals(progress: ProgressPage) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - {STACKS_SIGNAL})
    progress.set("helper", _thread.get_native_id())
    while True:
        signal.pause()
        progress.advance("awake")  # which takes the interpreter's lock: an agent sees whether it can be had


def _out_of_the_way(descriptor: int) -> int:
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
    except OSError:  # few descriptors are allowed here
        return descriptor
    os.close(descriptor)
    return high
