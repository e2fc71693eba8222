"""Test that no order of time survives between the runs."""

from __future__ import annotations

import os
from pathlib import Path

from compose_sim.plugins.resume.app.check import reverse_times


def test_time_stamps_are_reversed(tmp_path: Path) -> None:
    older, newer = tmp_path / "step_1.pt", tmp_path / "step_2.pt"
    for second, path in enumerate((older, newer), 1):
        path.touch()
        os.utime(path, ns=(1, second * 10**9))

    assert reverse_times([str(older), str(newer)])
    assert older.stat().st_mtime > newer.stat().st_mtime
