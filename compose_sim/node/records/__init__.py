"""The records of what ranks do, one dataclass per kind: observers write them in the ranks, checks read them.

Standard library only, on Python 3.9 or later: these types are used inside nodes.
"""

from __future__ import annotations

from . import (
    data,
    devices_and_files,
    gradients,
    models,
    precautions,
    process_groups,
    replays,
    resumption,
    script,
    timings,
)
from .record import KINDS

__all__ = [
    "KINDS",
    "data",
    "devices_and_files",
    "gradients",
    "models",
    "precautions",
    "process_groups",
    "replays",
    "resumption",
    "script",
    "timings",
]
