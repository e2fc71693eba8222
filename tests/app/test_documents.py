"""The compose file of a run, and the files that it refers to."""

from __future__ import annotations

from pathlib import Path

from compose_sim.app.documents import write_documents
from compose_sim.core.plan.model import Mount
from compose_sim.engine.run_folder.folder import RunFolder
from tests.builders import a_plan


def test_a_project_can_be_mounted_where_the_folder_above_it_is_covered(tmp_path: Path) -> None:
    """As `check --resume` does if the project is within a folder that nodes see read-only, such as above `.venv`."""
    project = f"{tmp_path}/.composesim/resume/demo/project"
    folder = RunFolder(tmp_path / ".composesim" / "runs" / "demo")
    folder.claim()
    plan = a_plan().with_mounts(Mount(source=project, target=project, read_only=False))

    write_documents(plan, folder.path, image="composesim-host:2")

    assert (folder.path / "empty" / "resume" / "demo" / "project").is_dir()
