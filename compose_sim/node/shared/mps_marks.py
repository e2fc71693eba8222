"""Name the files with which the MPS service tells nodes that it serves, or why it does not."""

from __future__ import annotations

READY = "composesim-ready"  # in the pipe folder, once the daemon has answered
FAILED = "composesim-failed"  # in its place, with the reason, if it never answers
