"""Does the wheel carry everything that composesim needs where no checkout is?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from compose_sim import assets

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel made from the sdist, as the package index would see it: what the sdist lacks is missing here too."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_the_assets_under_their_names_in_the_checkout(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "docker-compose.yml.j2", "templates", "train_ddp.py", "data", "docs/checks"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()

    assert {f"compose_sim/_assets/{name}" for name in tracked} <= set(ZipFile(wheel).namelist())


def test_the_wheel_carries_the_licence_and_nothing_beside_the_package(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()

    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"compose_sim", "composesim"}


def test_the_package_in_a_wheel_finds_its_own_assets(wheel: Path, tmp_path: Path) -> None:
    ZipFile(wheel).extractall(tmp_path)
    question = "from compose_sim import assets; print(assets.root())"

    found = subprocess.run(
        [sys.executable, "-c", question], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.strip()

    assert Path(found) == tmp_path / "compose_sim" / "_assets"


def test_the_package_in_a_checkout_finds_the_checkout() -> None:
    """An editable install leaves copies of the assets in site-packages, which go stale."""
    assert assets.root() == ROOT
