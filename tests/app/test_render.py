"""What `render` writes, and what it may overwrite in a folder that is not empty."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from compose_sim.app.render import render
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.run_folder.safe_files import UnsafeFileError
from compose_sim.errors import SpecError


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session that writes into the folder `out`, which exists."""
    (tmp_path / "project").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "project" / "train.py").write_text("print('hi')\n")
    spec = ClusterSpec.model_validate({"script": "train.py", "gpus": "none"})
    request = Request(spec=spec, folder=tmp_path / "project")
    return Session(request, folder=tmp_path / "out", portable=True)


@pytest.mark.parametrize("with_git", [False, True])
def test_the_code_of_a_project_is_not_what_was_rendered_there_before(with_git: bool, session: Session) -> None:
    project = session.request.folder
    if with_git:
        subprocess.run(["git", "init", "--quiet", project], check=True)
    for name in ("first", "second"):
        render(Session(session.request, folder=project / name, portable=True), force=False)

    assert [path.name for path in (project / "second" / "code").rglob("*")] == ["train.py"]


@pytest.mark.parametrize("link", ["code", "code/train.py"])
def test_force_follows_no_link(link: str, session: Session, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("precious")
    planted = tmp_path / "out" / link
    planted.parent.mkdir(exist_ok=True)
    planted.symlink_to(elsewhere if link == "code" else elsewhere / "train.py")

    with suppress(UnsafeFileError):
        render(session, force=True)

    assert (elsewhere / "train.py").read_text() == "precious"


def test_a_document_of_any_size_is_no_document_of_ours(session: Session, tmp_path: Path) -> None:
    with (tmp_path / "out" / "docker-compose.yml").open("w") as document:
        document.truncate(1 << 42)

    with pytest.raises(SpecError) as refused:
        render(session, force=False)

    assert "out-1" in refused.value.hint
