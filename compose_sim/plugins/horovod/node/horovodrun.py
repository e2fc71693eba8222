"""Run horovodrun in a Python that has already imported torch.

Arguments of the role `horovodrun`: MODULE PROGRAM ARGS..., where PROGRAM is a script of this Python

Before it starts a rank, horovodrun forks a process that imports torch, only to ask whether Horovod was built with gloo or MPI.
The nodes would wait for that. Here, torch is imported while the nodes import it too.
"""

from __future__ import annotations

import contextlib
import runpy
import sys

from ....node.shared import process
from ....node.starters import quick_exit
from ....node.starters.import_ahead import import_ahead


def main(arguments: list[str]) -> None:
    """Become horovodrun, and exit as it does."""
    module, program, *words = arguments
    process.set_command_line([sys.executable, program, *words])
    with quick_exit.prepared(), contextlib.suppress(Exception):  # horovodrun itself reports what is broken
        import_ahead(module)
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")
