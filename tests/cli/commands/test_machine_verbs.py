"""The verbs that need no run: init, completion, doctor."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from compose_sim.cli import VERBS, group
from compose_sim.core.faults.kinds import KINDS
from tests.builders import ROOT
from tests.cli.conftest import Project


def test_init_writes_files_that_an_editor_and_up_understand(project: Project) -> None:
    done = project.run("init", "new")

    new = Project(project.folder / "new")
    assert done.returncode == 0
    assert sorted(path.name for path in new.folder.iterdir()) == [
        "composesim.schema.json",
        "composesim.yaml",
        "train.py",
    ]
    assert (new.folder / "composesim.schema.json").read_text() == (
        ROOT / "templates/composesim.schema.json"
    ).read_text()
    plan = json.loads(new.run("plan", "--engine", "local", "--json").stdout)
    assert (plan["program"], plan["world_size"]) == ("train.py", 4)


def test_init_writes_what_is_missing_and_keeps_what_exists(project: Project) -> None:
    project.write("train.py", "mine")

    assert project.run("init").returncode == 0
    assert (project.folder / "train.py").read_text() == "mine"
    assert (project.folder / "composesim.yaml").is_file()

    assert project.run("init", "--force").returncode == 0
    assert (project.folder / "train.py").read_text() != "mine"
    assert (project.folder / "train.py.bak").read_text() == "mine"
    assert not (project.folder / "composesim.yaml.bak").exists(), "it was the same"

    project.write("train.py", "also mine")
    assert project.run("init", "--force").returncode == 0
    assert (project.folder / "train.py.bak").read_text() == "mine"
    assert (project.folder / "train.py.bak1").read_text() == "also mine"


def test_init_for_an_editor_writes_nothing_else(project: Project) -> None:
    assert project.run("init", "--vscode").returncode == 0

    assert [path.name for path in project.folder.iterdir()] == [".vscode"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell: str) -> None:
    done = CliRunner().invoke(group, ["completion", shell])

    assert done.exit_code == 0
    assert f"_COMPOSESIM_COMPLETE={shell}_complete" in done.output


def test_help_of_completion_has_lines_to_copy() -> None:
    lines = CliRunner().invoke(group, ["completion", "--help"]).output.splitlines()

    assert "    source <(composesim completion bash)" in lines
    assert not any("\b" in line for line in lines)


def test_verbs_and_options_are_completed() -> None:
    def completed(words: str, index: int) -> list[str]:
        env = {"_COMPOSESIM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        lines = CliRunner(env=env).invoke(group, [], prog_name="composesim").output.splitlines()
        return [line.partition(",")[2] for line in lines]

    assert completed("composesim ", 1) == list(VERBS)
    assert completed("composesim lo", 1) == ["logs"]
    assert "--follow" in completed("composesim logs --f", 2)
    assert completed("composesim completion ", 2) == ["bash", "zsh", "fish"]


def test_doctor_finds_the_python_that_tests_run_in(project: Project) -> None:
    done = project.run("doctor", "--json")

    report = json.loads(done.stdout)
    assert (done.returncode, report["fit"]) == (0, True)
    assert {check["id"] for check in report["checks"]} >= {"python", "docker", "memory", "disk", "leftovers"}


def test_doctor_fails_where_no_engine_can_run_anything(project: Project, tmp_path: Path) -> None:
    """There is no docker on PATH, and composesim can only find an active environment without torch."""
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['torch'] = None; from compose_sim.cli import main; sys.argv[1:] = ['doctor']; main()"
    )
    env = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)

    assert done.returncode == 4, done.stdout + done.stderr
    assert "✘ docker     the docker command is not installed" in done.stdout


def test_every_verb_has_help_that_says_what_it_does() -> None:
    for verb in VERBS:
        done = CliRunner().invoke(group, [verb, "--help"])
        assert done.exit_code == 0, verb
        assert len(done.output.splitlines()) > 3, verb


def test_only_what_lasts_is_offered_for_a_time() -> None:
    offered = {kind for kind in KINDS if "--for TIME" in CliRunner().invoke(group, ["fault", kind, "--help"]).output}
    assert offered == {kind for kind in KINDS if KINDS[kind].lasts}

    refused = CliRunner().invoke(group, ["fault", "restart", "node-1", "--for", "3s"])
    assert (refused.exit_code, "--for" in refused.output) == (2, True)


@pytest.mark.parametrize("path", ["/etc", "link"])
def test_a_dangerous_mount_has_to_be_allowed_on_the_command_line(project: Project, path: str) -> None:
    project.write("train.py", "")
    (project.folder / "link").symlink_to("/etc")
    words = ("plan", "--engine", "docker", "--mount", f"{path}:/x:ro")

    refused = project.run(*words, "train.py")
    allowed = project.run(*words, "--allow-mount", "/etc", "train.py")
    project.write("composesim.yaml", "allow_mount: [/etc]\n")
    by_itself = project.run(*words, "train.py")

    assert (refused.returncode, "--allow-mount" in refused.stderr) == (2, True)
    assert "--allow-mount" not in allowed.stderr
    assert (by_itself.returncode, "allow_mount" in by_itself.stderr) == (2, True)
