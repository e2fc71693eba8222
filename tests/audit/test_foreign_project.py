"""If root works in the project of another user, nothing that the project contains gets the rights of root."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim import assets
from compose_sim.app import play
from compose_sim.app.program import read_script
from compose_sim.errors import SpecError
from tests.audit.test_hostile_script import composesim

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
OWNER = 65534
SYSTEM_PYTHON = "/usr/bin/python3"  # the owner may not be able to reach ours
MODULES = ("json", "importlib", "site", "sitecustomize", "usercustomize")
IMPORTED = "open('imported', 'a').write(__name__)\n"
UP = ("up", "--engine", "local", "--recipe", "exec", "--python", SYSTEM_PYTHON)
NOTE = f"""#!/bin/sh
id -u >> uids
exec {SYSTEM_PYTHON} "$@"
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """A project of another user, outside the folders of pytest, which only their user can enter."""
    with tempfile.TemporaryDirectory(prefix="composesim-foreign-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "train.py").write_text("import os\nprint('user', os.getuid(), os.getgroups(), os.environ['HOME'])\n")
        os.chown(folder, OWNER, OWNER)
        yield folder


def write(project: Path, name: str, text: str, *, mode: int = 0o755) -> Path:
    path = project / name
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, OWNER, OWNER)
    return path


@pytest.mark.parametrize("named_by", ["composesim.yaml", "VIRTUAL_ENV", "PATH"])
def test_an_interpreter_of_the_project_runs_as_the_owner(named_by: str, project: Path) -> None:
    (project / "venv" / "bin").mkdir(parents=True)
    interpreter = "python3" if named_by == "PATH" else "python"
    write(project, f"venv/bin/{interpreter}", NOTE)
    variables = {"VIRTUAL_ENV": f"{project}/venv"} if named_by == "VIRTUAL_ENV" else {}
    if named_by == "PATH":
        variables = {"PATH": f"{project}/venv/bin:{os.environ['PATH']}", "VIRTUAL_ENV": ""}
    if named_by == "composesim.yaml":
        write(project, "composesim.yaml", "python: venv/bin/python\n")

    composesim(project, "plan", "--engine", "local", "--with", "tensorboard", "train.py", **variables)

    assert set((project / "uids").read_text().split()) == {str(OWNER)}


def test_an_inspected_interpreter_imports_nothing_from_the_project(project: Path) -> None:
    for module in MODULES:
        write(project, f"{module}.py", IMPORTED)

    composesim(project, "plan", "--engine", "local", "--python", SYSTEM_PYTHON, "train.py")

    assert not (project / "imported").exists()


def test_nodes_of_the_local_engine_run_as_the_owner(project: Path) -> None:
    done = composesim(project, *UP, "--", "sh", "-c", "echo $(id -u) $(id -G) $HOME", check=0)

    assert f" {OWNER} {OWNER} {pwd.getpwuid(OWNER).pw_dir}\n" in done.stdout


def test_nodes_never_run_as_root_if_the_run_is_kept_elsewhere(project: Path, tmp_path: Path) -> None:
    done = composesim(project, *UP, "--timeout", "20s", "--", "id", "-u", COMPOSESIM_RUNS=str(tmp_path / "runs"))

    printed = [line.partition(" | ")[2] for line in done.stdout.splitlines() if " | " in line]
    assert set(printed) <= {str(OWNER)}


def test_a_command_in_a_node_runs_as_the_owner(project: Path) -> None:
    run = f"foreign-{secrets.token_hex(3)}"
    composesim(project, *UP, "--detach", "--name", run, "--", "sleep", "600", check=0)
    try:
        done = composesim(project, "exec", "--run", run, "node-0", "--", "id", "-u")
    finally:
        composesim(project, "down", "--run", run, check=0)
        composesim(project, "wait", "--run", run)

    assert done.stdout.split() == [str(OWNER)]


def test_a_command_that_the_owner_recorded_is_not_run_again(project: Path) -> None:
    """It could name a folder of root, in which programs run as root."""
    words = ["up", "--engine", "local", "--recipe", "exec", "--", "touch", str(project / "touched")]
    run = project / ".composesim" / "runs" / "demo"
    run.mkdir(parents=True)
    for name, text in {"plan.json": "{}", "command.json": json.dumps({"folder": "/", "words": words})}.items():
        write(project, f".composesim/runs/demo/{name}", text)
    for folder in (run, *run.parents[:2]):
        os.chown(folder, OWNER, OWNER)

    done = composesim(project, "rerun", "demo", check=2)

    assert f"touch {project}/touched" in done.stdout
    assert not (project / "touched").exists()


def test_the_labels_of_another_users_process_lead_to_no_run_of_root(tmp_path: Path) -> None:
    """Anybody can start a process with the variables of a node, which name a run and a folder."""
    (tmp_path / "train.py").touch()
    words = ("--engine", "local", "--launcher", "env", "--nodes", "1", "--name", "precious")
    composesim(tmp_path, "up", *words, "train.py", check=0)
    run = tmp_path / ".composesim" / "runs" / "precious"
    labels = {"ENGINE": "local", "RUN": "precious", "NODE": "node-0", "DIR": str(run)}
    environment = {f"COMPOSESIM_{name}": value for name, value in labels.items()}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **environment}, user=OWNER, group=OWNER) as stranger:
        try:
            composesim(tmp_path, "down", "--purge", check=2)
            listed = composesim(tmp_path, "ps", check=0).stdout
            composesim(tmp_path, "up", *words, "train.py", check=0)
        finally:
            stranger.kill()

    assert "precious" not in listed
    assert (run / "report.json").is_file()


@pytest.mark.parametrize("name", [".env", "settings.env", "composesim.yaml"])
def test_a_file_of_root_is_not_read_for_the_owner(name: str, project: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET=1\n")
    secret.chmod(0o600)
    (project / name).symlink_to(secret)
    if name == "settings.env":
        write(project, "composesim.yaml", "env_file: [settings.env]\n")

    done = composesim(project, "plan", "--json", "--engine", "local", "--python", SYSTEM_PYTHON, "train.py", check=2)

    assert "SECRET" not in done.stdout


def test_render_executes_no_program_of_the_repository(project: Path, tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    write(project, "monitor", "#!/bin/sh\nid -u >> uids\n")
    for words in (["init", "-q"], ["config", "core.fsmonitor", f"{project}/monitor"]):
        subprocess.run(["git", *words], cwd=project, check=True, user=OWNER, group=OWNER, env={"PATH": os.defpath})

    words = ("render", "--python", SYSTEM_PYTHON, str(tmp_path / "rendered"), "train.py")
    composesim(project, *words, check=0, SUDO_UID=str(OWNER))

    assert not (project / "uids").exists()


def test_render_copies_only_what_the_owner_can_read(project: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET=1\n")
    secret.chmod(0o600)
    (project / "data.txt").symlink_to(secret)

    done = composesim(project, "render", "--python", SYSTEM_PYTHON, str(tmp_path / "rendered"), "train.py", check=2)

    assert f"'{project}/data.txt'" in done.stdout
    assert not (tmp_path / "rendered" / "code" / "data.txt").exists()


def test_render_makes_no_setuid_program_of_root(project: Path, tmp_path: Path) -> None:
    write(project, "tool", "#!/bin/sh\n")
    (project / "tool").chmod(0o4755)  # changing the owner clears the bit

    composesim(project, "render", "--python", SYSTEM_PYTHON, str(tmp_path / "rendered"), "train.py", check=0)

    assert (tmp_path / "rendered" / "code" / "tool").stat().st_mode & 0o7777 == 0o755


def test_our_own_process_imports_nothing_from_the_current_folder(project: Path) -> None:
    for module in ("json", "click"):  # Python itself imports some before we can do anything
        write(project, f"{module}.py", IMPORTED)

    subprocess.run([sys.executable, "-m", "compose_sim", "ps"], cwd=project, check=True, capture_output=True)

    assert not (project / "imported").exists()


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
        for kind in ("pipe", "large", "of root")
        if (name, kind) != (".env", "pipe")  # it can as well be the folder of a virtual environment, and is not read
    ],
)
def test_a_file_of_another_kind_is_refused_at_once(name: str, kind: str, project: Path) -> None:
    write(project, "loss.yaml", "cluster: {engine: local}\nexpect:\n  - exit_code: 0\n")
    path = project / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"#" * (5 << 20 if kind == "large" else 10))
    path.chmod(0o600)
    if kind != "of root":
        os.chown(path, OWNER, OWNER)

    verb = ("play", "loss.yaml") if name == "loss.yaml" else ("plan", "--engine", "local")
    refused = composesim(project, *verb, "train.py")
    assert refused.returncode == 2, refused.stdout
    assert name in refused.stdout


def test_files_of_composesim_are_read_where_the_owner_cannot_go(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "example.py").write_text("print(1)\n")
    (tmp_path / "own.yaml").write_text("expect:\n  - exit_code: 0\n")
    monkeypatch.setattr(assets, "examples", lambda: tmp_path)
    monkeypatch.setattr(play, "shipped_scenarios", lambda: [tmp_path / "own.yaml"])
    monkeypatch.chdir(project)

    assert read_script(tmp_path / "example.py", project) == b"print(1)\n"
    assert len(play.read_scenario("own").expect) == 1
    (project / "own").symlink_to(tmp_path / "own.yaml")
    with pytest.raises(SpecError, match="Permission denied"):
        play.read_scenario("own")
