"""Which files are read as the user's code before a check."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.core.checks.source import find_hints
from compose_sim.engine.host.script_sources import read_sources

LOOP = "import torch.distributed as dist\ndef fit():\n    if dist.get_rank() == 0:\n        dist.all_reduce(1)\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("project", "helpers/loops", "site-packages/library"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "helpers/loops/__init__.py").write_text("from loops.data import load\n")
    (tmp_path / "helpers/loops/fit.py").write_text(LOOP)
    (tmp_path / "helpers/loops/data.py").write_text("")
    (tmp_path / "site-packages/library/__init__.py").write_text(LOOP)
    return tmp_path / "project"


def write(project: Path, text: str) -> Path:
    (project / "train.py").write_text(text)
    return project.parent / "helpers/loops"


def test_modules_on_the_search_path_are_read(project: Path) -> None:
    loops = write(project, "from loops import fit\n")
    found = read_sources(project, "train.py", ["", "../helpers", "/nowhere"])
    assert list(found) == ["train.py", *(str(loops / name) for name in ("__init__.py", "fit.py", "data.py"))]
    assert [(hint.place.file, hint.place.line) for hint in find_hints(found)] == [(str(loops / "fit.py"), 4)]


def test_modules_in_a_folder_that_the_script_adds_are_read(project: Path) -> None:
    loops = write(project, "import sys\nsys.path.insert(0, '../helpers')\nimport loops.fit\n")
    assert list(read_sources(project, "train.py")) == ["train.py", str(loops / "fit.py")]


def test_a_module_in_the_project_comes_before_one_elsewhere(project: Path) -> None:
    write(project, "import loops.fit\n")
    (project / "loops").mkdir()
    (project / "loops/fit.py").write_text("")
    assert list(read_sources(project, "train.py", ["../helpers"])) == ["train.py", "loops/fit.py"]


def test_libraries_and_modules_that_no_path_names_are_left_out(project: Path) -> None:
    write(project, "import library\nimport loops.fit\n")
    assert list(read_sources(project, "train.py", ["../site-packages"])) == ["train.py"]
