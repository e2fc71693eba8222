"""Which mounts could hand the machine to the code of nodes?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.plan.model import Mount, Program
from compose_sim.core.plan.mounts import node_mounts, private_project, why_dangerous
from compose_sim.core.request.spec import ClusterSpec
from tests.builders import a_host

HOMES = {"/home/ada", "/data/people/bob"}


@pytest.mark.parametrize(
    "source",
    [
        *(
            "/",
            "/etc",
            "/etc/ssl",
            "/var",
            "/var/lib",
            "/var/lib/docker/volumes",
            "/run",
            "/run/docker.sock",
            "/srv/docker.sock",
        ),
        *("/home", "/home/ada", "/root", "/data", "/data/people", "/data/people/bob", "/dev", "/proc", "/sys"),
        *("/home/ada/.ssh", "/home/ada/.ssh/id_ed25519", "/data/people/bob/.aws"),
        *("/data/project/.composesim", "/data/project/.composesim/runs", "/data/.composesim/runs/x/shared"),
    ],
)
def test_the_system_homes_and_credentials_are_dangerous(source: str) -> None:
    assert why_dangerous(source, homes=HOMES)


@pytest.mark.parametrize(
    "source",
    [
        "/data/sets",
        "/home/ada/data",
        "/home/ada/.cache/huggingface",
        "/mnt",
        "/tmp/x",
        "/usr/share/data",
        "/etcetera",
        "/dev/shm/x",
    ],
)
def test_folders_of_data_are_not(source: str) -> None:
    assert why_dangerous(source, homes=HOMES) == ""


@pytest.mark.parametrize("folder", ["/tmp", "/", "/home/node"])
def test_of_a_folder_that_nodes_have_privately_they_see_the_script_alone(folder: str) -> None:
    """A mount of the folder would hide it: Docker puts a tmpfs there."""
    mounts = (Mount(source=folder, target=folder), Mount(source="/tmp/x.py", target="/tmp/x.py", read_only=True))
    program = Program(target="x.py", folder=folder, mounts=mounts)

    assert mounts[1:] == node_mounts(ClusterSpec(), a_host(), program, image="an-image")
    assert private_project(program).value == "x.py alone"
    assert private_project(replace(program, folder=f"{folder}/project")) is None
