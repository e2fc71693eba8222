"""Check scripts that resume rightly, and wrong twins of them: three runs each, as plain processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.resume.pairs import PAIRS, Pair, with_marks, write


def check_resume(
    folder: Path, *words: str, engine: str = "local", python: str | Path = sys.executable
) -> dict[str, Any]:
    """Return the report of `check --resume`."""
    command = [python, "-m", "compose_sim", "check", "--resume", "--engine", engine, "--json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in report, report
    return report


@pytest.mark.train
@pytest.mark.parametrize("pair", with_marks(PAIRS, lambda pair: pair.missing or pair.script))
def test_the_state_that_is_missing_is_named_and_right_scripts_pass(pair: Pair, tmp_path: Path) -> None:
    script = write(pair, tmp_path)
    text = script.read_text()

    report = check_resume(tmp_path, "--nodes", "1", "--nproc-per-node", "2", *pair.options, pair.script)

    (result,) = report["checks"]
    if pair.missing:
        assert (report["verdict"], result["status"]) == ("failed", "failed")
        assert result["detail"].partition(":")[0] == pair.missing
        assert result["place"] is None or result["place"]["file"] == str(script)
        assert pair.missing != "scheduler" or "Save scheduler.state_dict() and load it" in result["fix"]
    else:
        assert (report["verdict"], result["status"]) == ("passed", "passed"), result["detail"]
    assert script.read_text() == text
    assert {each.name for each in tmp_path.iterdir()} == {".composesim", pair.script}
    assert not list((tmp_path / ".composesim").glob("resume/*"))
