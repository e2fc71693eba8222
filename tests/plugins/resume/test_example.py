"""Check that the example of this project resumes, also with another number of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.view.reader import PageReader
from tests.builders import ROOT
from tests.plugins.resume.test_pairs import check_resume


@pytest.mark.train
@pytest.mark.parametrize("options", [("--nodes", "2"), ("--world", "2:1")], ids=["same ranks", "fewer ranks"])
def test_the_example_resumes(options: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copy(ROOT / "train_ddp.py", tmp_path)
    shutil.copytree(ROOT / "data", tmp_path / "data")

    report = check_resume(tmp_path, *options, "train_ddp.py", "--epochs", "2")

    assert report["verdict"] == "passed", report["checks"]
    assert [each["status"] for each in report["checks"]] == ["passed"]
    if "--world" not in options:  # as the document shows
        assert f"✔ resume  {report['checks'][0]['detail']}\n" in (ROOT / "docs/plugins/resume/resume.md").read_text()
    page = PageReader(RunFolder(runs_folder(tmp_path) / report["run"])).read()
    resumed = page["now"]["against"]
    assert resumed["now"]["run"] == f"{report['run']}-resumed"
    assert {name for name, *_ in resumed["metrics"]} >= {"loss"}
