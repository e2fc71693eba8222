"""Run the user's script in a driver, and report how it ended.

Arguments of the role `driver-script`: [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import os

from ..shared import process
from ..shared.event_log import EventLog
from . import script_runner


def main(arguments: list[str]) -> None:
    """Run the script."""
    process.die_with(os.getppid())
    script_runner.run_alone(script_runner.UserProgram.from_arguments(arguments), EventLog.from_environment(os.environ))
