"""Nodes see every folder that the chosen Python imports from."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

from compose_sim.engine.host import facts
from compose_sim.engine.host.facts import find_python
from compose_sim.errors import EnvironmentMissingError
from tests.builders import PATIENCE_S
from tests.scenarios.conftest import eventually


def test_the_cache_that_packages_are_links_into_belongs_to_the_python(tmp_path: Path) -> None:
    """With UV_LINK_MODE=symlink, uv makes the folders of a package, and a link for every file."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (installed,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    archives = tmp_path / "cache" / "archive-v0"
    for file in (Path("torch-2.13.0.dist-info/METADATA"), Path("torch/__init__.py")):
        for folder in (archives / "Gx-NaYU", installed):
            (folder / file).parent.mkdir(parents=True)
        (archives / "Gx-NaYU" / file).write_text("Metadata-Version: 2.4\nName: torch\nVersion: 2.13.0\n")
        (installed / file).symlink_to(archives / "Gx-NaYU" / file)

    python = find_python(str(tmp_path / "venv" / "bin" / "python"))

    assert python
    assert python.packages["torch"] == "2.13.0"
    assert python.prefixes[-1] == str(archives)


@pytest.mark.parametrize("does", ["sleep 600 & wait", "yes"])
def test_an_interpreter_of_a_project_has_limits(does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_PROBE_S", 5.0)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)

    with pytest.raises(EnvironmentMissingError, match="did not run as a Python interpreter"):
        find_python(str(python))


def test_an_interpreter_of_a_project_ends_with_us(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $$ > id.new\nmv id.new id\nexec sleep 600\n")
    python.chmod(0o755)
    words = [sys.executable, "-P", "-m", "compose_sim", "plan", "--engine", "local", "--python", str(python)]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        eventually((tmp_path / "id").exists, within=PATIENCE_S, what="the interpreter starts")
        process.kill()

    inspected = int((tmp_path / "id").read_text())
    eventually(lambda: not psutil.pid_exists(inspected), within=PATIENCE_S, what="the interpreter ends")
