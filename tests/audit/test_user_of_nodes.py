"""Nodes do not run as root, not even in a project of root."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from compose_sim.core.plan.model import STAND_IN, mapped_folder
from compose_sim.engine.host.facts import inspect_host
from tests.audit.test_containers import firewall_of
from tests.audit.test_hostile_script import composesim
from tests.builders import PATIENCE_S
from tests.scenarios.conftest import BARE, PAUSES, Project, containers_of, eventually, project_in, wait_for_line

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose another user"),
]
SCRIPT = """
import os
from pathlib import Path
Path(os.environ["COMPOSESIM_SHARED"], "mine").touch()
try:
    Path("theirs").touch()
except PermissionError:
    print("refused for", os.getuid())
"""
ATTACKS = """
import os, stat
from pathlib import Path

def refused(act):
    try:
        act()
    except OSError:
        return True
    return False

Path("checkpoint.pt").write_text("weights")
Path(os.environ["COMPOSESIM_SHARED"], "shared.pt").write_text("weights")
print("user", os.getuid(), os.stat("secret").st_uid, Path("secret").read_text())
print("refused", [
    refused(lambda: os.chown("checkpoint.pt", 0, 0)),
    refused(lambda: os.chmod("checkpoint.pt", 0o4755)),
    refused(lambda: os.chmod("checkpoint.pt", 0o2755)),
    refused(lambda: os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 1))),
    refused(lambda: Path("shadow").read_text()),
    refused(lambda: os.setuid(0)),
    refused(lambda: Path("/composesim/node/__main__.py").write_text("")),
])
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    if why := inspect_host(tmp_path).cannot_map:
        pytest.skip(why)
    yield from project_in(tmp_path)


def mounts_of(run: str) -> list[str]:
    """The mounts on this machine of a run."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    folder = Path(mapped_folder(run))
    return [line for line in lines if f" {folder}/" in line] + [str(path) for path in (folder,) if path.exists()]


def test_a_script_in_a_project_of_root_is_not_root_and_its_files_belong_to_root(project: Project) -> None:
    name, secret, shadow = project.named("stand-in"), project.folder / "secret", project.folder / "shadow"
    secret.write_text("of root")
    secret.chmod(0o600)
    shadow.symlink_to("/etc/shadow")

    done = project.run("up", *BARE, "--nodes", "1", "--name", name, project.write("attack.py", ATTACKS))

    assert done.status == 0, done.stderr
    assert f"user {STAND_IN} {STAND_IN} of root" in done.stdout
    assert f"refused {[True] * 7}" in done.stdout
    shared = project.folder / ".composesim" / "runs" / name / "shared"
    for file in (project.folder / "checkpoint.pt", shared / "shared.pt"):
        status = file.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o6000, file.read_text()) == (0, 0, 0, "weights")
    assert mounts_of(name) == []


def test_root_stays_root_if_asked_for(project: Project) -> None:
    script = project.write("who.py", "import os\nprint('user', os.getuid())\n")
    name = project.named("root")

    done = project.run("up", *BARE, "--user", "root", "--nodes", "1", "--name", name, script)

    assert "user 0\n" in done.stdout
    assert json.loads((project.folder / ".composesim" / "runs" / name / "plan.json").read_text())["mapped"] == []


def test_no_mount_is_left_after_kill_9(project: Project) -> None:
    name = project.named("killed")
    with project.start("up", *BARE, "--nodes", "1", "--name", name, project.write("train.py", PAUSES)) as process:
        wait_for_line(process, "begun")
        assert len(mounts_of(name)) > 1
        process.kill()

    eventually(lambda: mounts_of(name) == [], within=PATIENCE_S, what="the supervisor removes the mounts")


def test_kept_nodes_keep_their_mounts_until_down(project: Project) -> None:
    name = project.named("kept")
    project.run("up", *BARE, "--keep", "--nodes", "1", "--name", name, project.write("nothing.py", "pass\n"))
    assert len(mounts_of(name)) > 1
    assert project.run("prune").status == 0
    assert len(mounts_of(name)) > 1

    assert project.run("down", "--run", name).status == 0
    assert mounts_of(name) == []


@pytest.mark.parametrize(
    "command", [("prune",), ("up", *BARE, "--nodes", "1", "nothing.py")], ids=lambda words: words[0]
)
def test_mounts_of_a_crash_without_a_supervisor_are_removed_later(project: Project, command: tuple[str, ...]) -> None:
    name = project.named("crashed")
    project.write("nothing.py", "pass\n")
    with project.start("up", *BARE, "--nodes", "1", "--name", name, project.write("train.py", PAUSES)) as process:
        wait_for_line(process, "begun")
        children = psutil.Process(process.pid).children()
        (supervisor,) = (each for each in children if "compose_sim.engine.lifetime.supervisor" in each.cmdline())
        supervisor.kill()
        process.kill()
    subprocess.run(["docker", "rm", "--force", *containers_of(name)], check=True, capture_output=True)
    subprocess.run(["docker", "network", "rm", f"composesim-{name}_cluster"], check=True, capture_output=True)
    assert len(mounts_of(name)) > 1

    assert project.run(*command).status == 0

    assert (mounts_of(name), firewall_of(name)) == ([], [])
    assert (project.folder / "train.py").read_text() == PAUSES


def test_nodes_of_another_user_write_to_the_shared_storage_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("--engine", "docker", "--user", "nobody", "--launcher", "env", "--nodes", "1", "--name", "as-nobody")

    unreadable = composesim(tmp_path, "up", *words, "train.py", check=2)
    tmp_path.chmod(0o755)
    done = composesim(tmp_path, "up", *words, "train.py", check=0)

    assert f"chmod o+rx {tmp_path}" in unreadable.stdout
    assert "refused for 65534" in done.stdout
    assert not (tmp_path / "theirs").exists()
    assert (tmp_path / ".composesim" / "runs" / "as-nobody" / "shared" / "mine").stat().st_uid == 65534
