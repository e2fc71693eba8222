"""A verb acts on the run that is meant, and on no other project or folder."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path

import pytest

from compose_sim.cli.run_lookup import only_run
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.errors import SpecError
from tests.builders import PATIENCE_S, a_report
from tests.cli.conftest import Live, Project

PROJECT = Path("/here")
OWN = {"a": runs_folder(PROJECT) / "a"}
TWO = {**OWN, "b": runs_folder(PROJECT) / "b"}
OTHER = {"other": runs_folder(Path("/there")) / "other"}


def test_this_projects_only_run_is_meant() -> None:
    assert only_run(OWN | OTHER, PROJECT) == "a"


def test_another_projects_run_is_never_meant() -> None:
    with pytest.raises(SpecError, match="no run of '/here' is running; there is 1 run of other projects") as caught:
        only_run(OTHER, PROJECT)
    assert caught.value.hint == "composesim ps"  # not a command for the run of another project


def test_several_are_listed() -> None:
    with pytest.raises(SpecError, match="2 runs are running: a, b"):
        only_run(TWO | OTHER, PROJECT)
    with pytest.raises(SpecError, match="no run is running"):
        only_run({}, PROJECT)


@pytest.mark.parametrize("verb", ["down", "logs", "wait"])
def test_a_run_is_named_by_a_name_and_never_by_a_path(project: Project, verb: str) -> None:
    victim = project.folder / "victim"
    victim.mkdir()
    (victim / "lock").touch()
    runs_folder(project.folder).mkdir(parents=True)

    for name in (str(victim), "../../victim", "..", ""):
        done = project.run(verb, "--run", name, *(["--purge"] if verb == "down" else []))
        assert (done.returncode, "is not a valid run name" in done.stderr) == (2, True), done.stderr
    assert victim.is_dir()


def test_down_and_exec_leave_another_projects_run_alone(live: Live, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Project(tmp_path_factory.mktemp("other"))

    for words in (("down",), ("down", "--purge"), ("exec", "0", "--", "true")):
        done = other.run(*words)
        assert done.returncode == 2, done.stderr
        assert live.run not in done.stderr

    assert live.folder.is_dir()
    assert live.project.run("exec", "0", "--", "true").returncode == 0
    assert live.project.run("down").stderr == f"removed {live.run} from local\n"


def test_down_all_and_prune_leave_other_projects_alone_and_down_all_asks(
    live: Live, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Project(tmp_path_factory.mktemp("other"))
    crashed = f"crashed-{secrets.token_hex(3)}"
    folder = runs_folder(live.project.folder) / crashed
    folder.mkdir()
    labels = {"COMPOSESIM_ENGINE": "local", "COMPOSESIM_RUN": crashed, "COMPOSESIM_NODE": "node-0"}
    left = subprocess.Popen(["sleep", "1000"], env={**os.environ, **labels, "COMPOSESIM_DIR": str(folder)})
    try:
        assert crashed not in other.run("prune").stderr
        assert other.run("down", "--all", "--yes", "--purge").stderr == ""
        assert left.poll() is None

        refused = live.project.run("down", "--all", "--purge")
        assert (refused.returncode, "composesim down --all --yes --purge" in refused.stderr) == (2, True)
        assert live.run in live.project.run("ps").stdout
        assert left.poll() is None

        removed = live.project.run("down", "--all", "--yes").stderr.splitlines()
        assert {f"removed {name} from local" for name in (live.run, crashed)} == set(removed)
        assert left.wait(PATIENCE_S) != 0
    finally:
        left.kill()


def test_prune_finished_deletes_folders_of_this_project(project: Project) -> None:
    for name in ("one", "two"):
        folder = RunFolder(runs_folder(project.folder) / name)
        folder.files.replace("plan.json", "{}")
    RunFolder(runs_folder(project.folder) / "live").claim()

    deleted = json.loads(project.run("prune", "--finished", "--json").stdout)["deleted"]

    assert sorted(deleted) == ["one", "two"]
    assert [path.name for path in runs_folder(project.folder).iterdir()] == ["live"]


def test_a_start_is_ended_before_its_folder_goes(project: Project) -> None:
    name = f"starting-{secrets.token_hex(3)}"
    folder = RunFolder(runs_folder(project.folder) / name)
    folder.claim()
    down = project.start("down", "--run", name, "--purge")
    while not (folder.path / "journal" / "composesim.jsonl").is_file():  # there the command notes that it ends the run
        assert down.poll() is None
        os.sched_yield()
    assert down.poll() is None
    assert folder.path.is_dir()
    folder.release()

    _, said = down.communicate(timeout=PATIENCE_S)
    assert said.splitlines() == [f"stopped {name} while it was starting", f"deleted {folder.path}"]
    assert not folder.path.exists()


def test_what_was_rendered_is_no_crash(project: Project) -> None:
    """The labels are those of such a run's processes, with a folder that belongs to the user."""
    name = f"rendered-{secrets.token_hex(3)}"
    folder = project.folder / "rendered"
    folder.mkdir()
    code = (
        "import os, sys; os.environ['COMPOSESIM_AGENT_PID'] = str(os.getpid()); os.execvp('sleep', ['sleep', '1000'])"
    )
    labels = {"COMPOSESIM_ENGINE": "local", "COMPOSESIM_RUN": name, "COMPOSESIM_NODE": "node-0"}
    node = subprocess.Popen(
        ["python3", "-c", code], env={**os.environ, **labels, "COMPOSESIM_DIR": str(folder)}, start_new_session=True
    )
    try:
        while b"sleep" not in Path(f"/proc/{node.pid}/cmdline").read_bytes().split(b"\0")[0]:
            os.sched_yield()
        runs = {run["run"]: run["state"] for run in json.loads(project.run("ps", "--json").stdout)["runs"]}
        assert runs[name] == "rendered"
        assert name not in project.run("prune").stderr
        assert name not in project.run("doctor").stdout
        assert node.poll() is None

        assert project.run("down", "--run", name, "--purge").returncode == 0
        assert node.wait(PATIENCE_S) != 0
        assert folder.is_dir()
    finally:
        node.kill()


def test_one_unreadable_run_does_not_hide_the_others(project: Project) -> None:
    good = json.dumps(a_report().to_dict())
    for name, plan, report in (("old", "[]", None), ("odd", "{}", "{"), ("good", "{}", good)):
        folder = runs_folder(project.folder) / name
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(plan)
        if report:
            (folder / "report.json").write_text(report)

    runs = {run["run"]: run["state"] for run in json.loads(project.run("ps", "--all", "--json").stdout)["runs"]}

    assert {name: runs[name] for name in ("old", "odd", "good")} == {
        "old": "unreadable",
        "odd": "unreadable",
        "good": "passed",
    }
