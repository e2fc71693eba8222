"""Systems other than Linux are refused at once, with the reason."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("verb", ["up --engine local", "check --engine local", "plan", "doctor"])
def test_a_system_without_proc_is_refused_before_anything_starts(tmp_path: Path, verb: str) -> None:
    """A namespace of mounts whose /proc is empty stands in for macOS."""
    (tmp_path / "train.py").write_text("print(1)\n")
    script = "" if verb == "doctor" else " train.py"
    words = f"{shlex.quote(sys.executable)} -m compose_sim {verb} --json{script}"

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none /proc && exec {words}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 4, done.stderr
    assert "/proc" in json.loads(done.stdout)["error"]["message"]
    assert not (tmp_path / ".composesim").exists()
