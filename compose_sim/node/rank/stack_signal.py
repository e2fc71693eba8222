"""Write the stacks of a rank when the agent sends a signal, even if the rank is stuck in C code.

A helper thread only waits for signals, so they do not interrupt system calls of the user's threads. The first signal makes
it write the stacks of all threads with the interpreter's lock, so that no thread changes its stack at the same time. If it
does not get the lock, the second signal makes the handler of `faulthandler`, which is written in C, write them without it.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from ..shared.progress_page import STACKS_SIGNAL, WAKE_SIGNAL, ProgressPage
from . import flight_recorder
from .step_times import SAMPLE_EACH_S

_LONG_S = 10.0
_MIN_DESCRIPTOR = 500  # so that the script's own files get the same descriptors as without us

_progress: ProgressPage | None = None
_process = 0


def install(progress: ProgressPage) -> None:
    """Handle the signal in this process, and in those that it forks; must be called in the rank's main thread."""
    global _progress, _process
    try:
        opened = os.open(progress.stacks_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:  # the run folder cannot be written to
        return
    descriptor = _out_of_the_way(opened)
    faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
    # The helper thread waits for this signal instead of handling it; a handler shows the agent that it would end nothing.
    signal.signal(WAKE_SIGNAL, lambda *_: None)
    progress.set("main_thread", _thread.get_ident())
    progress.set("descriptor", descriptor)
    _progress, _process = progress, os.getpid()


def start_helper(look: Callable[[FrameType | None], None] | None = None) -> None:
    """Start the helper thread, once; between signals, it calls `look` with the frame of the main thread, each SAMPLE_EACH_S.

    Wait for this until the script has threads anyway, because it makes a process group: Python warns when a process
    with several threads forks. `_thread` is used so that `threading` does not list the thread or wait for it.
    """
    if _progress is not None and os.getpid() == _process and not _progress.get("helper"):
        # Until the thread sets the real id, so that a second call does not start another one
        _progress.set("helper", _process)
        _thread.start_new_thread(_wait_for_signals, (_progress, look))


def _wait_for_signals(progress: ProgressPage, look: Callable[[FrameType | None], None] | None) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - {STACKS_SIGNAL})
    progress.set("helper", _thread.get_native_id())
    main_thread = progress.get("main_thread")
    while True:
        # An interpreter that ends must not find this thread awake
        pause = _LONG_S if look is None or progress.get("leaving") else SAMPLE_EACH_S
        if signal.sigtimedwait({WAKE_SIGNAL}, pause) is None:
            with contextlib.suppress(Exception):  # a script may do anything to frames, and this thread must live on
                if look:
                    look(sys._current_frames().get(main_thread))
            continue
        progress.advance("awake")  # this takes the interpreter's lock, so it shows the agent that the lock is free
        if progress.get("stacks_wanted"):
            faulthandler.dump_traceback(progress.get("descriptor"))
            progress.set("stacks_wanted", 0)
        with contextlib.suppress(Exception):  # the recorder's format may change, and this thread must live on
            flight_recorder.answer(progress)


def _out_of_the_way(descriptor: int) -> int:
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
    except OSError:  # the limit on descriptors is low
        return descriptor
    os.close(descriptor)
    return high
