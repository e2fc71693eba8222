"""How does a run go on after its command has returned? As a process in a session of its own, whose words go to the run's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path


def continue_in_background(log: Path) -> Callable[[], None]:
    """
    Return in a new process that the terminal cannot end, still speaking to the terminal until `arrived()` is called.

    The calling process waits for that, and then leaves with status 0; where the new process ends before, with its status.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    news, arrival = os.pipe()
    child = os.fork()
    if child:
        os.close(arrival)
        if os.read(news, 1):
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.close(news)
    os.setsid()

    def arrived() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        os.write(arrival, b"1")
        os.close(arrival)

    return arrived
