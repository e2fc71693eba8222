"""What a project, a shell or another user leaves for a command is refused with a clear error, and soon."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.audit.test_hostile_script import composesim
from tests.builders import PATIENCE_S

PLAN = ("plan", "--engine", "local", "train.py")
DIGITS = "9" * 5000
DOUBLED = "".join(
    f"{name}={f'${{{before}}}' * 10}\n" for before, name in zip("ABCDEFGHIJK", "BCDEFGHIJKL", strict=True)
)
ALIASES = "env:\n  A: &a " + "x" * 100_000 + "\n" + "".join(f"  B{number}: *a\n" for number in range(10_000))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[tool.composesim]\nx = " + "[" * 20_000 + "]" * 20_000),
        ("pyproject.toml", f"[tool.composesim]\n{'.'.join('a' * 3000)} = 1\n"),
        ("pyproject.toml", f"[tool.composesim]\nnodes = {DIGITS}\n"),
        ("composesim.yaml", "nodes: 999999999\n"),
        ("composesim.yaml", "elastic: 1:999999999\n"),
        ("composesim.yaml", ALIASES),
        ("composesim.yaml", "".join(f"key{number}: 1\n" for number in range(30_000))),
        (".env", "A=" + "x" * 100 + "\n" + DOUBLED),
    ],
)
def test_settings_that_expand_or_nest_without_end_are_refused(name: str, text: str, project: Path) -> None:
    (project / name).write_text(text)

    refused = composesim(project, *PLAN, check=2)

    assert name in refused.stdout
    assert len(refused.stdout) < 20_000


@pytest.mark.parametrize(
    ("words", "variables", "code"),
    [
        (("up", "--engine", "local", "train.py"), {"COMPOSESIM_RUNS": "/dev/null/x"}, 4),
        (("report", "a" * 300 + "/"), {}, 4),
        (("play", "a" * 300), {}, 4),
        (("up", "--engine", "local", "--name", "\udcff", "train.py"), {}, 2),
    ],
)
def test_a_name_or_path_that_cannot_be_is_refused(
    words: tuple[str, ...], variables: dict[str, str], code: int, project: Path
) -> None:
    composesim(project, *words, check=code, **variables)


def test_room_is_measured_on_the_disk_of_the_runs(project: Path) -> None:
    refused = composesim(project, *PLAN, check=2, COMPOSESIM_RUNS="/proc/none")

    assert "on the disk of the runs; this machine has 0" in refused.stdout


def test_a_folder_that_was_deleted_is_named(project: Path) -> None:
    gone = project / "gone"
    gone.mkdir()
    words = [sys.executable, "-P", "-m", "compose_sim", "down", "--all", "--yes"]
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$0"; exec "$@"', gone, *words], cwd=gone, capture_output=True, text=True, check=False
    )

    assert (done.returncode, "the current folder has been deleted" in done.stderr) == (2, True)


@pytest.mark.train
def test_messages_go_into_no_file_of_a_run_if_the_standard_streams_are_closed(project: Path) -> None:
    words = [
        sys.executable,
        "-P",
        "-m",
        "compose_sim",
        "up",
        "--engine",
        "local",
        "--launcher",
        "env",
        "--name",
        "shut",
    ]
    closed = 'exec "$@" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", closed, "", *words, "train.py"], cwd=project, timeout=PATIENCE_S, check=False)

    assert done.returncode == 0
    run = project / ".composesim" / "runs" / "shut"
    assert {path.name for path in run.rglob("*") if path.is_file() and b"ran on" in path.read_bytes()} == set()


def test_a_limit_of_the_size_of_files_is_named(project: Path) -> None:
    words = [sys.executable, "-P", "-m", "compose_sim", "up", "--engine", "local", "train.py"]
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, preexec_fn=limit, check=False)

    assert (done.returncode, "ulimit -f" in done.stderr) == (4, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
@pytest.mark.parametrize("name", ["composesim.yaml", "pyproject.toml", ".env"])
def test_settings_that_any_user_could_have_planted_are_refused(name: str, project: Path) -> None:
    """In a folder such as `/tmp`: they could name the interpreter."""
    project.chmod(0o1777)
    (project / name).write_text({".env": "A=1\n", "composesim.yaml": "nodes: 1\n"}.get(name, "[tool.composesim]\n"))
    composesim(project, *PLAN, check=0)
    os.chown(project / name, 4242, 4242)

    refused = composesim(project, *PLAN, check=2)
    still_refused = composesim(project, *PLAN, check=2, COMPOSESIM_TRUST_PROJECT="1")

    assert "belongs to the user 4242" in refused.stdout
    assert "belongs to another user" in still_refused.stdout
    project.chmod(0o755)
    composesim(project, *PLAN, check=0, COMPOSESIM_TRUST_PROJECT="1")
