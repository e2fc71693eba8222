"""Git refuses a commit whose subject is too long."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.builders import ROOT


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("x" * 72, 0),
        ("x" * 73, 1),
        ("é" * 72 + "\n\n" + "a longer line of the body " * 9, 0),
        ("# a comment of git\n" + "x" * 73, 1),
        ("Merge branch " + "x" * 80, 0),
    ],
)
def test_a_subject_of_more_than_72_characters_is_refused(message: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "COMMIT_EDITMSG").write_text(message)
    command = [ROOT / "scripts/commit_msg.sh", tmp_path / "COMMIT_EDITMSG"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, "73 characters" in done.stderr) == (status, bool(status))
