"""`report` of a run whose lock cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compose_sim.cli.commands.inspection import report_command
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.errors import SpecError
from tests.builders import a_plan


def test_a_run_whose_lock_cannot_be_opened_is_not_said_to_be_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(runs_folder(tmp_path) / "demo")
    folder.claim()
    folder.write_plan(a_plan(run="demo"))
    folder.release()
    (folder.path / "lock").unlink()
    os.mkfifo(folder.path / "lock")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SpecError, match="lock' is a named pipe"):
        report_command.main(["--run", "demo"], standalone_mode=False)
