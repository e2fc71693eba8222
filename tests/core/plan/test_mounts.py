"""Which mounts could hand the machine to the code of nodes?"""

from __future__ import annotations

import pytest

from compose_sim.core.plan.mounts import why_dangerous

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
