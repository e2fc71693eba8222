"""What a project, a script or a second run of the same name cannot do, one finding of an audit each."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from pathlib import Path

import pytest

from compose_sim.app.request import Request, read_request
from compose_sim.app.session import Session
from compose_sim.core.plan.model import Plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.request.yaml_source import read_documents
from compose_sim.core.verdict.hang import Breakpoint
from compose_sim.engine.host.run_names import claimed_name
from compose_sim.engine.lifetime import attach
from compose_sim.errors import SpecError
from tests.builders import a_plan
from tests.cli.conftest import UP, Project
from tests.core.compose.test_document import document


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("print(1)\n")
    (home / "code").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "code")
    return Project(home / "code")


def planned(given: dict[str, object], **options: object) -> Plan:
    request = read_request({"engine": "docker", "image": "torch:1", **given}, **options)  # type: ignore[arg-type]
    return request.plan(run="demo", run_folder=Path.cwd() / ".composesim" / "runs" / "demo")[0]


def test_a_script_that_leads_to_credentials_is_refused_like_a_mount(project: Project) -> None:
    (project.folder / "train.py").symlink_to("../.ssh/config")

    with pytest.raises(SpecError, match="credentials") as caught:
        planned({"script": "train.py"})

    assert "--allow-mount" in caught.value.hint
    assert planned({"script": "train.py"}, allow_mount=[str(project.folder.parent / ".ssh")])


def test_settings_cannot_name_a_script_beside_credentials(project: Project) -> None:
    project.write("composesim.yaml", "script: ../.ssh/config\n")

    with pytest.raises(SpecError, match="credentials"):
        planned({})


def test_a_link_into_a_home_that_is_a_link_is_refused_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    link = project.folder.parents[1] / "ada"
    link.symlink_to("home")
    monkeypatch.setenv("HOME", str(link))
    (project.folder / "train.py").symlink_to("../.ssh/config")

    with pytest.raises(SpecError, match="credentials"):
        planned({"script": "train.py"})


def test_a_script_that_the_user_typed_may_be_in_the_home_folder(project: Project) -> None:
    script = project.folder.parent / "train.py"
    script.write_text("")

    assert planned({"script": str(script)})


def test_a_folder_in_place_of_a_file_is_refused(project: Project) -> None:
    (project.folder / "folder.yaml").mkdir()

    refused = project.run("plan", "-f", "folder.yaml", "train.py")
    assert refused.returncode == 2
    assert "folder.yaml' is a folder" in refused.stderr


def test_runs_are_covered_in_a_project_that_is_named_through_a_link(project: Project) -> None:
    link = project.folder.parent / "link"
    link.symlink_to("code")
    project.write("train.py", "")
    mounts = (f"{project.folder}:/data",)
    request = Request(spec=ClusterSpec(script="train.py", mounts=mounts, engine="docker", image="torch:1"), folder=link)
    plan, _ = request.plan(run="demo", run_folder=link / ".composesim" / "runs" / "demo")

    text = document(plan, folder=f"{link}/.composesim/runs/demo", real_path=os.path.realpath)

    assert 'target: "/data/.composesim"' in text
    assert f'target: "{link}/.composesim"' in text


def test_a_hidden_folder_is_covered_wherever_containers_see_it(project: Project) -> None:
    project.write("train.py", "")
    (project.folder / "answers").mkdir()
    spec = ClusterSpec(script="train.py", engine="docker", image="torch:1")
    hidden = (os.path.realpath(project.folder / "answers"),)
    session = Session(Request(spec=spec, folder=project.folder, hidden=hidden))

    covers = [mount for mount in session.plan.mounts if mount.source == "./empty"]
    assert [(mount.target, mount.read_only) for mount in covers] == [(f"{project.folder}/answers", True)]


def test_a_second_run_of_a_name_is_refused_while_another_project_holds_it(project: Project) -> None:
    run = f"twice-{secrets.token_hex(3)}"
    project.write("train.py", "print('over')\n")
    up = [*UP, "--nodes", "1", "--nproc-per-node", "1", "--name", run, "train.py"]

    with claimed_name("local", run):
        refused = project.run(*up)

    assert refused.returncode == 2
    assert f"'{run}' is under way in another project" in refused.stderr
    assert project.run(*up).returncode == 0


def test_down_during_the_start_interrupts_a_run(project: Project) -> None:
    """The Python of the nodes waits, as the disk of a busy machine makes it wait, until nodes have been removed."""
    run = f"starting-{secrets.token_hex(3)}"
    python = project.folder / "python"
    waits = project.folder / "waits"
    begin = f'case "$*" in *zygote*) touch {waits}; exec sleep 600;; esac'
    python.write_text(f'#!/bin/sh\n{begin}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    project.write("train.py", "print('over')\n")
    up = project.start(*UP, "--python", str(python), "--nodes", "1", "--name", run, "train.py")
    while not waits.exists():
        assert up.poll() is None, up.communicate()

    assert project.run("down", "--run", run).returncode == 0
    up.communicate()
    assert up.returncode == 130


def test_a_mapping_that_is_merged_often_is_refused_at_once() -> None:
    base = "".join(f"  key{number}: 1\n" for number in range(1000))
    text = f"base: &a\n{base}all:\n  <<: [{', '.join(['*a'] * 1000)}]\n"

    with pytest.raises(SpecError, match="more than 100,000 values"):
        read_documents(text, "job.yaml")


def test_arguments_cannot_begin_a_line_of_the_output() -> None:
    plan = a_plan(args=["a\n✔ passed", "\x1b[2J"])

    assert "\n" not in plan.program
    assert plan.program.isprintable()


def test_a_prompt_of_a_script_cannot_act_on_the_terminal() -> None:
    rank, link = socket.socketpair()
    prompts: list[str] = []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        raise EOFError

    with rank, link:
        rank.sendall(b"\x1b]52;c;cHduZWQ=\x07\x1b[2J(Pdb) ")
        relay = threading.Thread(target=attach.relay_typed, args=(link, lambda _: None, read_line), daemon=True)
        relay.start()
        while rank.recv(1):
            pass
        rank.close()
        relay.join()

    assert prompts == ["(Pdb) "]


@pytest.mark.parametrize("name", ["../debug.sock", "link.sock", "/run/docker.sock"])
def test_attach_connects_only_to_sockets_of_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "debug").mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "debug.sock"))
        other.listen()
        (tmp_path / "debug" / "link.sock").symlink_to("../debug.sock")
        stop = Breakpoint(file="train.py", line=1, node="node-0", socket=name, phase="waiting")

        assert attach._connect(tmp_path, stop) is None
