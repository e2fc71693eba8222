"""Run a command again each time a file of the project changes.

The times of files are polled, which needs no library and also works on network file systems.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from compose_sim.engine.subprocesses import start_on_terminal

_NOT_OURS = frozenset({"__pycache__", "node_modules", "site-packages"})
_DEEPEST = 50  # levels of folders: os.walk recurses, and a script may nest more folders than Python allows calls
_LOOK_S, _SHARE_OF_A_CORE = 0.3, 0.1
_INTERRUPTED = 130

Times = Mapping[Path, int]  # path -> when the file was modified, in nanoseconds


def run_at_each_change(
    argv: Sequence[str], folder: Path, *, files: Collection[str], tell: Callable[[str], None]
) -> int:
    """
    Run a command on this terminal now and at each change of a `.py` file below `folder`, or of one of `files`.

    A change interrupts a run that is under way. Ctrl-C ends the run, or the watch if there is none. Returns the last exit code.
    """
    while True:
        known = _times(folder, files)
        status, changed = _run_until_change(argv, partial(_wait_for_change, folder, files, known))
        if not changed:
            if status == _INTERRUPTED:
                return status
            try:
                tell("Waiting for a change (Ctrl-C to leave)")
                changed = _wait_for_change(folder, files, known, threading.Event())
            except KeyboardInterrupt:
                return status
        tell(f"{changed} has changed")


def _run_until_change(argv: Sequence[str], wait: Callable[[threading.Event], str]) -> tuple[int, str]:
    """Run the command to the end, or until `wait` returns a file that has changed; return the exit status and the file."""
    over, changed, child = threading.Event(), "", start_on_terminal(argv)

    def watch() -> None:
        nonlocal changed
        changed = wait(over)
        if changed:
            child.send_signal(signal.SIGINT)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the child, too
    try:
        status = child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    over.set()
    watcher.join()
    return status, changed


def _wait_for_change(folder: Path, files: Collection[str], known: Times, canceled: threading.Event) -> str:
    """Return the first file that differs from `known`, relative to the folder; "" if the wait is canceled."""
    pause = _LOOK_S
    while not canceled.wait(pause):
        began = time.monotonic()
        now = _times(folder, files)
        changed = sorted(path for path in {**known, **now} if known.get(path) != now.get(path))
        if changed:
            return os.path.relpath(changed[0], folder)
        pause = max(_LOOK_S, (time.monotonic() - began) / _SHARE_OF_A_CORE)
    return ""


def _times(folder: Path, files: Collection[str]) -> Times:
    """Return when each file was modified. Hidden folders, virtual environments and folders that are nested too deep are left out."""
    paths = [folder / name for name in files]
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not (name.startswith(".") or name in _NOT_OURS)]
        if "pyvenv.cfg" in names or above.count(os.sep) - os.fspath(folder).count(os.sep) == _DEEPEST:
            folders.clear()
        paths += [Path(above, name) for name in names if name.endswith(".py")]
    found = {}
    for path in paths:
        try:
            found[path] = path.stat().st_mtime_ns
        except OSError:  # there is no such file, or an editor is replacing it
            continue
    return found
