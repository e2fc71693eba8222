"""What a CI job gets of `check --resume`: the JUnit file, the annotation of the line, and the summary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compose_sim.cli import main
from tests.plugins.resume.pairs import PAIRS, write
from tests.plugins.resume.test_pairs import check_resume


@pytest.mark.train
def test_a_missing_state_is_written_for_ci(tmp_path: Path) -> None:
    pair = next(each for each in PAIRS if each.name == "by_hand-optimizer")
    script = write(pair, tmp_path)
    loaded_at = script.read_text().splitlines().index("    state = torch.load(SAVED)") + 1
    summary = tmp_path / "summary.md"
    command = [sys.executable, "-m", "compose_sim", "check", "--resume", "--engine", "local", "--nproc-per-node", "2"]
    job = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)}

    done = subprocess.run(
        [*command, "--junit", "junit.xml", "--json", pair.script],
        cwd=tmp_path,
        env={**os.environ, **job},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    (result,) = json.loads(done.stdout)["checks"]
    case = ElementTree.parse(tmp_path / "junit.xml").find(".//testcase[failure]")
    assert case is not None
    failure = case.find("failure")
    assert failure is not None
    assert "optimizer" in failure.attrib["message"]
    assert result["place"] == {"file": str(script), "line": loaded_at}
    assert f"::error file={pair.script},line={loaded_at}" in done.stderr
    assert "optimizer" in summary.read_text()


@pytest.mark.train
def test_a_second_run_that_fails_by_itself_is_not_judged(tmp_path: Path) -> None:
    project, mark = tmp_path / "project", tmp_path / "first-run-is-over"
    project.mkdir()
    script = write(next(each for each in PAIRS if each.name == "lines-killed-while-saving"), project)
    text = script.read_text()
    again = f"    if os.path.exists({str(mark)!r}):\n        raise OSError('the port is taken')\n"
    end = "    dist.destroy_process_group()\n"
    assert text.count("def main():\n") == text.count(end) == 1
    script.write_text(
        text.replace("def main():\n", f"def main():\n{again}").replace(end, f"{end}    open({str(mark)!r}, 'w')\n")
    )

    report = check_resume(project, "--nodes", "1", "--nproc-per-node", "2", script.name)

    assert report["verdict"] == "inconclusive"
    assert "OSError: the port is taken" in report["checks"][0]["detail"]


def test_an_option_that_only_says_how_to_resume_is_refused_without_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('not run')\n")
    monkeypatch.setattr(sys, "argv", ["composesim", "check", "--at-step", "3", "train.py"])

    with pytest.raises(SystemExit) as left:
        main()

    assert left.value.code == 2
    assert "composesim check --resume --at-step 3 train.py" in capsys.readouterr().err
