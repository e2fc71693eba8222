"""Tell a notice of Slurm from the end of a run by composesim: nodes get SIGTERM for both.

Slurm gives notice before it preempts a job or ends it at its time limit, and kills it after a grace period of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

_OURS = "control/slurm-stop"


def announce_stop(folder: Path) -> None:
    """Note that composesim is about to send SIGTERM to nodes of the run in this folder."""
    (folder / _OURS).touch()


def is_notice(folder: Path) -> bool:
    """Return whether SIGTERM, which this node has received, was sent by Slurm."""
    return os.environ.get("COMPOSESIM_ENGINE") == "slurm" and not (folder / _OURS).exists()
