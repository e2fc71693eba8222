"""What a script leaves in the project does not stop composesim from watching it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from compose_sim.engine.lifetime.watch import run_at_each_change
from compose_sim.engine.run_folder.safe_files import SafeFolder


def test_more_nested_folders_than_python_allows_calls(tmp_path: Path) -> None:
    below = os.open(tmp_path, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("d", dir_fd=below)
        above, below = below, os.open("d", os.O_RDONLY, dir_fd=below)
        os.close(above)
    os.close(below)
    interrupted = [sys.executable, "-c", "raise SystemExit(130)"]

    try:
        assert run_at_each_change(interrupted, tmp_path, files=(), tell=print) == 130
    finally:
        SafeFolder(tmp_path).remove_tree("d")
