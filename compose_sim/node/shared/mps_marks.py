"""Name the files with which the MPS service reports to the nodes."""

from __future__ import annotations

READY = "composesim-ready"  # in the pipe folder, once the daemon has answered
FAILED = "composesim-failed"  # instead, with the reason, if it does not answer
