"""In a project of root, neither what the project contains nor what others plant there gets more than it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.test_hostile_script import composesim

MODULES = ("json", "importlib", "site", "sitecustomize", "usercustomize")
IMPORTED = "open('imported', 'a').write(__name__)\n"
UP = ("up", "--engine", "local", "--recipe", "exec")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


def test_an_inspected_interpreter_imports_nothing_from_the_project(project: Path) -> None:
    for module in MODULES:
        (project / f"{module}.py").write_text(IMPORTED)

    composesim(project, "plan", "--engine", "local", "--python", "/usr/bin/python3", "train.py")

    assert not (project / "imported").exists()


def test_our_own_process_imports_nothing_from_the_current_folder(project: Path) -> None:
    for module in ("json", "click"):  # Python itself imports some before we can do anything
        (project / f"{module}.py").write_text(IMPORTED)

    subprocess.run([sys.executable, "-m", "compose_sim", "ps"], cwd=project, check=True, capture_output=True)

    assert not (project / "imported").exists()


def test_render_executes_no_program_of_the_repository(project: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    (project / "monitor").write_text("#!/bin/sh\nid -u >> uids\n")
    (project / "monitor").chmod(0o755)
    for words in (["init", "-q"], ["config", "core.fsmonitor", f"{project}/monitor"]):
        subprocess.run(["git", *words], cwd=project, check=True)

    composesim(project, "render", "rendered", "train.py", check=0)

    assert not (project / "uids").exists()


def test_render_makes_no_setuid_program(project: Path) -> None:
    (project / "tool").write_text("#!/bin/sh\n")
    (project / "tool").chmod(0o4755)

    composesim(project, "render", "rendered", "train.py", check=0)

    assert (project / "rendered" / "code" / "tool").stat().st_mode & 0o7777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_folder_that_cannot_be_deleted_keeps_no_other_run(project: Path) -> None:
    for run in ("first", "second"):
        assert composesim(project, *UP, "--name", run, "--nodes", "1", "--", "true").returncode == 0
    runs = project / ".composesim" / "runs"
    busy = runs / "first" / "shared"
    subprocess.run(["mount", "-t", "tmpfs", "none", str(busy)], check=True)
    try:
        purged = composesim(project, "down", "--all", "--yes", "--purge")
    finally:
        subprocess.run(["umount", str(busy)], check=True)
    assert purged.returncode == 1
    assert "first was not deleted" in purged.stdout
    assert [path.name for path in runs.iterdir()] == ["first"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in ("train.py", "composesim.yaml", ".env", "loss.yaml")
        for kind in ("pipe", "large")
        if (name, kind) != (".env", "pipe")  # it can as well be the folder of a virtual environment, and is not read
    ],
)
def test_a_file_of_another_kind_is_refused_at_once(name: str, kind: str, project: Path) -> None:
    (project / "loss.yaml").write_text("cluster: {engine: local}\nexpect:\n  - exit_code: 0\n")
    path = project / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"#" * (5 << 20))

    verb = ("play", "loss.yaml") if name == "loss.yaml" else ("plan", "--engine", "local")
    refused = composesim(project, *verb, "train.py")
    assert refused.returncode == 2, refused.stdout
    assert name in refused.stdout
