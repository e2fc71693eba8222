"""What surrounds the person's script in a driver? The news of how it ended, and nothing else it sees.

The role `driver-script`.
"""

from __future__ import annotations

import os

from ..shared import process
from ..shared.event_log import EventLog
from . import script_runner


def main(arguments: list[str]) -> None:
    """Arguments: [-m] SCRIPT ARGS..."""
    process.die_with(os.getppid())
    script_runner.run_alone(script_runner.UserProgram.from_arguments(arguments), EventLog.from_environment(os.environ))
