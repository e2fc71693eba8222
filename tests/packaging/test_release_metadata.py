"""A release names where it comes from, and every link of its page on the package index has a host."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.builders import ROOT

REPOSITORY = "https://git.example/ada/composesim"


def test_a_release_has_project_urls_and_absolute_links_to_files_that_exist(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    words = [sys.executable, str(ROOT / "scripts" / "release_metadata.py"), REPOSITORY, "v0.1.0"]
    subprocess.run(words, cwd=tmp_path, check=True)

    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    links = [*project["urls"].values(), *re.findall(r"\]\(([^)]+)\)", (tmp_path / "README.md").read_text())]
    assert {link for link in links if not link.startswith(f"{REPOSITORY}/")} == {REPOSITORY}
    files = [file for link in links for file in re.findall(r"/(?:blob|raw)/v0\.1\.0/([^#]+)", link)]
    assert len(files) > 20
    pages = {file for file in files if not file.startswith("docs/plugins/")}  # those of a plug-in may have been deleted
    assert [file for file in files if file in pages and not (ROOT / file).exists()] == []
    assert f"({REPOSITORY}/raw/v0.1.0/docs/pictures/run.svg)" in (tmp_path / "README.md").read_text()
    assert "scripts" in project


def test_the_repository_names_no_address_of_its_own() -> None:
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
