"""Check scripts that save outside of the project: their folder is replaced, or nothing in it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugins.resume.pairs import SCRIPTS
from tests.plugins.resume.test_pairs import check_resume

RANKS = ("--nodes", "1", "--nproc-per-node", "2")


def write(project: Path, saved: Path) -> None:
    """Write a script that saves into a folder that it names itself."""
    project.mkdir()
    saved.mkdir()
    text = (SCRIPTS / "by_epoch.py").read_text()
    named = 'Path(os.environ["COMPOSESIM_SHARED"])'
    assert named in text
    (project / "train.py").write_text(text.replace(named, f"Path({str(saved)!r})"))


@pytest.mark.train
def test_each_run_gets_an_empty_folder_in_the_place_of_the_one_it_saves_into(tmp_path: Path) -> None:
    project, saved = tmp_path / "project", tmp_path / "saved"
    write(project, saved)
    (saved / "latest.txt").write_text("epoch-9, of the user")

    report = check_resume(project, *RANKS, "--checkpoint-folder", str(saved), "train.py")

    assert report["verdict"] == "passed", report["checks"]
    assert {each.name: each.read_text() for each in saved.iterdir()} == {"latest.txt": "epoch-9, of the user"}


@pytest.mark.train
def test_the_runs_do_not_meet_in_a_folder_that_is_not_replaced(tmp_path: Path) -> None:
    project, saved = tmp_path / "project", tmp_path / "saved"
    write(project, saved)

    report = check_resume(project, *RANKS, "train.py")

    assert report["verdict"] == "inconclusive"
    assert f"composesim check --resume --checkpoint-folder {saved} --engine local" in json.dumps(report)


@pytest.mark.train
@pytest.mark.parametrize(
    "change",
    [
        "pass",
        "(SHARED / 'epoch-0' / 'state.pt').unlink()",
        "shutil.rmtree(SHARED / 'epoch-0')",
        "(SHARED / 'epoch-0').rename(SHARED / 'old')",
        "(SHARED / 'epoch-0' / 'step.txt').write_text('0')",
    ],
)
def test_what_was_there_before_is_not_changed(change: str, tmp_path: Path) -> None:
    project, saved = tmp_path / "project", tmp_path / "saved"
    write(project, saved)
    script = project / "train.py"
    text = script.read_text().replace("import os\n", "import os\nimport shutil\n")
    script.write_text(
        text.replace("\n\ndef main():\n", f"\nif int(os.environ['RANK']) == 0:\n    {change}\n\n\ndef main():\n")
    )
    (saved / "epoch-0").mkdir()
    own = {saved / "epoch-0" / "state.pt": "the user's", saved / "epoch-0" / "step.txt": "1"}
    for path, content in own.items():
        path.write_text(content)

    report = check_resume(project, *RANKS, "train.py")

    assert report["verdict"] == "inconclusive"
    assert f"--checkpoint-folder {saved}/epoch-0" in json.dumps(report)
    assert {path: path.read_text() for path in own} == own


@pytest.mark.train
def test_data_that_is_named_like_a_checkpoint_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "final.pt").write_bytes(b"")
    (tmp_path / "train.py").write_text("import torch\n\ntorch.load('data/final.pt')\n")

    report = check_resume(tmp_path, *RANKS, "train.py")

    assert report["verdict"] == "inconclusive"
    assert "data/final.pt" in report["checks"][0]["detail"] + json.dumps(report["cause"])


@pytest.mark.docker
@pytest.mark.train
def test_nodes_in_containers_share_the_folder(tmp_path: Path) -> None:
    project, saved = tmp_path / "project", tmp_path / "saved"
    write(project, saved)

    report = check_resume(project, "--nodes", "2", "--checkpoint-folder", str(saved), "train.py", engine="docker")

    assert report["verdict"] == "passed", report["checks"]
    assert [*saved.iterdir()] == []
