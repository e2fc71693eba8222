"""A training script that attacks its own run neither crashes nor hangs composesim, nor acts on whoever reads the run."""

from __future__ import annotations

import ast
import json
import os
import pty
import resource
import secrets
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.audit.readers import control_characters, workflow_commands_in
from tests.builders import PATIENCE_S, ROOT

SCRIPT = ROOT / "tests" / "audit" / "hostile.py"
FORGERIES = ("forge", "forge-journal", "forge-others", "forge-ranks")
VERDICTS = dict.fromkeys((*FORGERIES, "raise-escapes", "raise-commands", "raise-surrogate"), 1)
_TABLE = next(
    node.value
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ATTACKS"
)
assert isinstance(_TABLE, ast.Dict)
_ATTACKS = [ast.literal_eval(key) for key in _TABLE.keys if key]
_OPEN_FILES = (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # as on most machines
IN_CONTAINERS = ("root", "setuid")
REPLACE_RUNS = """
import contextlib, os
from pathlib import Path
project = Path("/all/group/project")
for folder in (project.parent.parent, project):
    (folder / "trained").touch()
with contextlib.suppress(OSError):
    (project / ".composesim" / "planted").touch()
for folder in (project, project.parent):
    with contextlib.suppress(OSError):
        folder.rename(folder.with_name("moved"))
        (project / ".composesim").mkdir(parents=True)
"""


def composesim(
    folder: Path, *words: str, check: int | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "compose_sim", *words],  # as the command does, which is not started from a folder
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, _OPEN_FILES),
        timeout=PATIENCE_S,
        check=False,
        text=True,
    )
    assert check in (None, done.returncode), done.stdout
    return done


def up(
    folder: Path, attack: str, *options: str, script: Path = SCRIPT, **variables: str
) -> tuple[str, subprocess.CompletedProcess[str]]:
    """Run an attack, and return the name of the run too."""
    run = f"hostile-{secrets.token_hex(3)}"
    words = ("up", "--engine", "local", "--launcher", "env", "--nodes", "2", "--name", run, "--timeout", "110s")
    done = composesim(folder, *words, *options, str(script), attack, check=VERDICTS.get(attack, 0), **variables)
    report = json.loads((folder / ".composesim" / "runs" / run / "report.json").read_text())
    assert report["exit_code"] == done.returncode
    assert control_characters(done.stdout) == []
    return run, done


def test_attacks_do_not_change_the_verdict(tmp_path: Path) -> None:
    """All in one run that ends well; if this fails, try them one by one: composesim up --launcher env hostile.py ATTACK."""
    attacks = [name for name in _ATTACKS if name not in (*IN_CONTAINERS, *VERDICTS)]
    script = tmp_path / "<img src=x onerror=alert(2)>]]>&'\".py"
    shutil.copy(SCRIPT, script)
    run, _ = up(tmp_path, ",".join(attacks), script=script)

    (note,) = json.loads((tmp_path / ".composesim" / "runs" / run / "report.json").read_text())["notes"]
    assert "are ignored" in note
    assert "fine" in composesim(tmp_path, "logs", "--run", run, check=0).stdout
    composesim(tmp_path, "report", run, "--html", "page.html", "--junit", "junit.xml", check=0)
    page = (tmp_path / "page.html").read_text()
    assert ("alert(1)" in page, "alert(2)" in page, "<img" in page) == (True, True, False)
    suites = ElementTree.parse(tmp_path / "junit.xml").iter("testsuite")
    assert [suite.attrib["name"] for suite in suites] == [f"composesim {script} {','.join(attacks)}"]
    composesim(tmp_path, "prune", "--finished", check=0)
    assert not (tmp_path / ".composesim" / "runs" / run).exists()


@pytest.mark.parametrize("attack", FORGERIES)
def test_a_rank_forges_no_verdict(attack: str, tmp_path: Path) -> None:
    run, _ = up(tmp_path, attack)

    report = json.loads((tmp_path / ".composesim" / "runs" / run / "report.json").read_text())
    if attack == "forge-ranks":
        assert (report["cause"]["node"], report["cause"]["rank"], report["cause"]["kind"]) == ("node-0", 0, "exit")
        assert "step" not in report["metrics"]


def test_a_folder_in_place_of_the_report_costs_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.mkdir(os.environ['COMPOSESIM_DIR'] + '/report.json')\n")
    words = ("up", "--engine", "local", "--launcher", "env", "--nodes", "1", "train.py")

    done = composesim(tmp_path, *words, check=0)

    assert "report.json was not written" in done.stdout


def test_a_link_in_place_of_the_run_folder_leaves_the_timeout_in_force(tmp_path: Path) -> None:
    run = "os.environ['COMPOSESIM_DIR']"
    script = f"import os, time\nos.rename({run}, {run} + 'x')\nos.symlink('/etc', {run})\ntime.sleep(600)\n"
    (tmp_path / "train.py").write_text(script)
    words = ("up", "--engine", "local", "--launcher", "env", "--nodes", "1", "--timeout", "5s", "train.py")

    done = composesim(tmp_path, *words, check=2)

    assert "is a symbolic link, not a folder" in done.stdout
    assert "Exception in thread" not in done.stdout


@pytest.mark.docker
def test_no_setuid_file_leaves_a_container(tmp_path: Path) -> None:
    """Nodes run as root here, as always in a project of root, and write into the project."""
    _, done = up(tmp_path, "setuid", "--engine", "docker", "--nodes", "1")

    assert done.stdout.count("refused") == 3 + (os.getegid() == 0)
    assert (tmp_path / "chmod").is_file()
    given = stat.S_ISUID if os.getegid() else stat.S_ISUID | stat.S_ISGID
    assert [path for path in tmp_path.iterdir() if path.stat().st_mode & given] == []


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0, reason="a project of root")
def test_root_in_a_container_is_not_root_of_the_machine(tmp_path: Path) -> None:
    """Of what belongs to the machine, it can change only the project and the run's own folders, and read no secret of `/etc`."""
    (tmp_path / "theirs").touch(mode=0o600)
    os.chown(tmp_path / "theirs", 1000, 1000)
    _, done = up(tmp_path, "root", "--engine", "docker", "--nodes", "1")

    (line,) = (line for line in done.stdout.splitlines() if '"written"' in line)
    seen = json.loads(line.partition(" | ")[2])
    assert set(seen["done"].values()) <= {"Operation not permitted", "Permission denied", "Read-only file system"}
    of_run = {f"/composesim/{name}" for name in ("debug", "events", "logs", "observations", "shared")}
    assert set(seen["written"]) == {str(tmp_path), *of_run}
    assert set(seen["secret"]) <= {"/etc/passwd", "/etc/group"}  # those that composesim writes for the nodes


@pytest.mark.docker
def test_a_container_cannot_write_what_another_one_reports(tmp_path: Path) -> None:
    """The master's events, and the events and logs of the neighbor, are in folders that the rank does not see."""
    run, done = up(tmp_path, "forge-others", "--engine", "docker")

    folder = tmp_path / ".composesim" / "runs" / run
    cause = json.loads((folder / "report.json").read_text())["cause"]
    assert (cause["node"], cause["rank"], cause["kind"]) == ("node-0", 0, "exit")
    assert "forged" not in done.stdout + composesim(tmp_path, "logs", "--run", run, check=0).stdout
    assert {path.parts[-3] for path in folder.glob("nodes/*/*/*") if b"forged" in path.read_bytes()} == {"node-0"}


@pytest.mark.docker
@pytest.mark.parametrize("source", ["above", "link"])
def test_a_mount_that_contains_the_project_lets_no_node_replace_its_runs(source: str, tmp_path: Path) -> None:
    project = tmp_path / "above" / "group" / "project"
    project.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "above")
    (project / "train.py").write_text(REPLACE_RUNS)
    mount = f"{tmp_path / source}:/all"

    composesim(project, "up", "--engine", "docker", "--launcher", "env", "--nodes", "1", "--mount", mount, "train.py")

    assert (tmp_path / "above" / "trained").is_file()
    assert (project / "trained").is_file()
    assert [path.parent for path in tmp_path.glob("**/.composesim")] == [project]
    assert not (project / ".composesim" / "planted").exists()


@pytest.mark.parametrize("attack", ["print-escapes", "raise-escapes", "raise-surrogate"])
def test_no_command_that_reads_a_run_lets_it_act_on_the_terminal(attack: str, tmp_path: Path) -> None:
    run, _ = up(tmp_path, attack)

    for words in (("logs", "--run", run), ("logs", "--json", "--run", run), ("report", run), ("report", "--json", run)):
        assert control_characters(on_terminal(tmp_path, *words)) == [], words
    for words in (("stats", "--run", run), ("ps", "--all"), ("ps", "--all", "--json")):
        assert control_characters(on_terminal(tmp_path, *words)) == [], words


def test_the_live_view_lets_no_script_act_on_the_terminal(tmp_path: Path) -> None:
    run = f"hostile-{secrets.token_hex(3)}"
    shown = on_terminal(
        tmp_path, "up", "--engine", "local", "--launcher", "env", "--name", run, str(SCRIPT), "print-escapes"
    )

    assert f"fine {'print-escapes'}" in shown
    assert [part for part in ("\x1b]", "\x1bP", "\x1b[2J", "\x9b", "\x07") if part in shown] == []


@pytest.mark.parametrize("attack", ["print-commands", "raise-commands"])
def test_in_a_job_of_github_no_output_is_executed(attack: str, tmp_path: Path) -> None:
    run, done = up(tmp_path, attack, GITHUB_ACTIONS="true")

    assert workflow_commands_in(done.stdout) == []
    for words in (("logs", "--run", run), ("report", run)):
        assert workflow_commands_in(composesim(tmp_path, *words, GITHUB_ACTIONS="true").stdout) == []


def on_terminal(folder: Path, *words: str) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "compose_sim", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    ):
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 1 << 16):
                written += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    return written.decode("utf-8", "replace")
