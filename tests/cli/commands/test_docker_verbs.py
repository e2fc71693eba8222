"""The verbs do the same with real containers as with processes."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator

import pytest

from tests.builders import PATIENCE_S
from tests.cli.conftest import Project
from tests.scenarios.conftest import PAUSES

pytestmark = pytest.mark.docker


@pytest.fixture
def run(project: Project) -> Iterator[str]:
    """Start two nodes that never end by themselves."""
    name = f"verbs-{secrets.token_hex(3)}"
    project.write("train.py", PAUSES)
    started = project.run("up", "--engine", "docker", "--launcher", "env", "--detach", "--name", name, "train.py")
    assert started.stdout == f"{name}\n", started.stderr
    yield name
    project.run("down", "--run", name, "--purge")


def docker(*argv: str) -> list[str]:
    return subprocess.run(["docker", *argv], capture_output=True, text=True, check=True).stdout.split()


def test_containers_are_listed_entered_and_removed(project: Project, run: str) -> None:
    runs = {each["run"]: each for each in json.loads(project.run("ps", "--json").stdout)["runs"]}
    assert (runs[run]["engine"], runs[run]["state"]) == ("docker", "under way")
    assert [node["node"] for node in runs[run]["nodes"]] == ["master", "node-0", "node-1"]

    entered = project.run("exec", "--run", run, "1", "--", "sh", "-c", "hostname; exit 5")
    assert (entered.returncode, entered.stdout) == (5, "node-1\n")

    down = project.run("down", "--run", run)
    assert (down.returncode, down.stderr) == (0, f"removed {run} from docker\n")
    assert docker("ps", "--all", "--quiet", "--filter", f"label=composesim.run={run}") == []
    assert docker("network", "ls", "--quiet", "--filter", f"label=composesim.run={run}") == []
    assert project.run("wait", "--run", run).returncode == 130


def test_a_command_in_a_node_leaves_no_setuid_file(project: Project, run: str) -> None:
    planted = project.folder / project.write("planted", "")

    entered = project.run("exec", "--run", run, "1", "--", "chmod", "4755", str(planted))

    assert "Operation not permitted" in entered.stderr
    assert planted.stat().st_mode & 0o6000 == 0
    assert project.run("exec", "--run", run, "1", "--", "no-such-command").returncode == 127


def test_a_node_tells_its_network_traffic_and_memory(project: Project, run: str) -> None:
    watch = project.start("stats", "--watch", "--run", run)
    assert watch.stdout is not None
    for line in watch.stdout:
        if line.startswith("node-0") and line.count("iB") >= 3:
            break
    watch.terminate()
    watch.communicate(timeout=PATIENCE_S)

    first = json.loads(project.run("stats", "--run", run, "--json").stdout)["nodes"][0]
    assert min(first["memory_bytes"], first["received_bytes"], first["sent_bytes"]) > 0


def test_a_run_kept_on_purpose_survives_prune_and_not_down(project: Project) -> None:
    name = f"kept-{secrets.token_hex(3)}"
    project.write("train.py", "print('done')\n")
    done = project.run("up", "--engine", "docker", "--launcher", "env", "--keep", "--name", name, "train.py")
    assert done.returncode == 0, done.stderr

    listed = {run["run"]: run["state"] for run in json.loads(project.run("ps", "--json").stdout)["runs"]}
    assert listed[name] == "passed, kept"
    assert f"skipped {name}: it was started with --keep" in project.run("prune").stderr
    assert len(docker("ps", "--all", "--quiet", "--filter", f"label=composesim.run={name}")) == 3

    assert project.run("down", "--run", name).returncode == 0
    assert docker("ps", "--all", "--quiet", "--filter", f"label=composesim.run={name}") == []
    assert docker("network", "ls", "--quiet", "--filter", f"label=composesim.run={name}") == []
