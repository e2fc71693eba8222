"""Run horovodrun in a Python that has imported what horovodrun imports in a process that it forks.

Arguments of the role `horovodrun`: MODULE PROGRAM ARGS...

Before it starts a rank, horovodrun asks Horovod's extension whether it was built with gloo or MPI, which imports torch: 1.9 s,
in which the nodes only wait. Here that is done while the nodes import torch themselves.
"""

from __future__ import annotations

import runpy
import sys

from ...shared import process
from ...starters.import_ahead import import_ahead


def main(arguments: list[str]) -> None:
    """Become horovodrun, and exit as it does."""
    module, program, *words = arguments
    process.set_command_line([sys.executable, program, *words])
    import_ahead(module)
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")
