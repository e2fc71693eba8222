"""What surrounds the person's script in a driver? The news of how it ended, and nothing else it sees.

script.py [-m] SCRIPT ARGS...
"""

from __future__ import annotations

if __name__ == "__main__" and not __package__:
    import as_package  # type: ignore[import-not-found]

    __package__ = as_package.NAME

import os
import sys

from . import process, rank
from .emit import events_of

if __name__ == "__main__":
    process.die_with(os.getppid())
    rank.run_alone(rank.Program.from_arguments(sys.argv[1:]), events_of(os.environ))
