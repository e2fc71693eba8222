"""Detach a run: continue in a new session, and log to the run folder."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from compose_sim.engine.run_folder.safe_files import SafeFolder


def continue_in_background(folder: SafeFolder, log: str) -> Callable[[], None]:
    """
    Return in a new process that the terminal cannot end. It writes to the terminal until it calls `arrived()`.

    The calling process waits for that call and exits with status 0. If the new process exits first, both have the same exit status.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    news, arrival = os.pipe()
    child = os.fork()
    if child:
        os.close(arrival)
        _wait_for_arrival(news, child)
    os.close(news)
    os.setsid()

    def arrived() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        file = folder.open_file(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        with contextlib.suppress(BrokenPipeError):  # the waiting process has been killed
            os.write(arrival, b"1")
        os.close(arrival)

    return arrived


def _wait_for_arrival(news: int, child: int) -> NoReturn:
    while True:
        try:
            has_arrived = os.read(news, 1)
            os._exit(0 if has_arrived else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        except KeyboardInterrupt:  # the terminal no longer reaches the new session
            os.kill(child, signal.SIGINT)
