"""The wheel contains all that composesim needs without a checkout, and `import composesim` works in every kind of install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist, as the package index would: what the sdist lacks is missing here too."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_the_assets_under_their_names_in_the_checkout(wheel: Path) -> None:
    tracked = subprocess.run(
        [
            "git",
            "ls-files",
            "docker-compose.yml.j2",
            "templates",
            "train_ddp.py",
            "data",
            "docs/checks",
            "docs/explain",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()

    folders = [ROOT / "compose_sim" / "view" / "page", *(ROOT / "compose_sim" / "plugins").glob("*/templates")]
    files = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*") if path.is_file()]
    own = {str(path) for path in files if "__pycache__" not in path.parts}
    assert {f"compose_sim/{name}" for name in tracked} | own <= set(ZipFile(wheel).namelist())


def test_the_wheel_carries_the_license_and_nothing_beside_the_package(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()

    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert [name for name in names if name.endswith("data/share/man/man1/composesim.1")]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"compose_sim", "composesim"}


def test_an_installed_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """As with pipx, the environment of composesim holds neither torch nor the checkout."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    libraries = next((tmp_path / "venv" / "lib").glob("python3*/site-packages")) / "libraries.pth"
    # Of the other dependencies; an editable composesim is not among them.
    libraries.write_text(sysconfig.get_path("purelib"))
    environment = {**os.environ, "VIRTUAL_ENV": "", "COMPOSESIM_RUNS": str(tmp_path)}

    def run(*words: str) -> str:
        argv = [str(tmp_path / "venv" / "bin" / "composesim"), *words]
        done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("init", "project")
    up = ("up", "--engine", "local", "--launcher", "env", "--json", "--python", sys.executable)
    (tmp_path / "hello.py").write_text("print('hello')\n")
    assert json.loads(run(*up, "hello.py"))["verdict"] == "passed"
    assert run("check", "--explain", "set-epoch") == (ROOT / "docs" / "checks" / "set-epoch.md").read_text()
    assert run("--version").startswith("composesim, version ")


def imported(*folders: Path) -> list[str]:
    """Import composesim in a fresh interpreter that searches these folders first; return the paths of it and its assets."""
    code = (
        f"import sys; sys.path[:0] = {[str(folder) for folder in folders]}\n"
        "import composesim, compose_sim\n"
        "from compose_sim import assets\n"
        "assert composesim.run is compose_sim.run and composesim.ClusterSpec(nodes=2).nodes == 2\n"
        "print(composesim.__file__, compose_sim.__file__, assets.root())"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_wheel_can_be_imported_and_finds_its_own_assets(wheel: Path, tmp_path: Path) -> None:
    ZipFile(wheel).extractall(tmp_path)

    assert imported(tmp_path) == [
        str(tmp_path / "composesim" / "__init__.py"),
        str(tmp_path / "compose_sim" / "__init__.py"),
        str(tmp_path / "compose_sim"),
    ]
    assert (tmp_path / "composesim" / "py.typed").is_file()


def test_an_editable_install_can_be_imported_and_finds_the_checkout(tmp_path: Path) -> None:
    """An editable install also copies the assets into site-packages, and those copies go stale."""
    build = "import sys; from hatchling.build import build_editable; print(build_editable(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    site = tmp_path / "site"
    ZipFile(tmp_path / made.stdout.split()[-1]).extractall(site)
    linked = [Path(line) for file in site.glob("*.pth") for line in file.read_text().splitlines()]

    assert imported(site, *linked) == [
        str(site / "composesim" / "__init__.py"),
        str(ROOT / "compose_sim" / "__init__.py"),
        str(ROOT),
    ]
