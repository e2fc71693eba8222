"""Nodes run as the owner of the project; in a project of root, as the user that root names."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from compose_sim.engine.project_owner import user_of_nodes
from compose_sim.errors import SpecError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose another user")
NOBODY, UNKNOWN = 65534, 54321


@pytest.mark.parametrize(
    ("named", "user", "group"),
    [(None, 0, 0), ("root", 0, 0), ("nobody", NOBODY, pwd.getpwuid(NOBODY).pw_gid), (str(UNKNOWN), UNKNOWN, UNKNOWN)],
)
def test_root_names_the_user_in_a_project_of_root(named: str | None, user: int, group: int, tmp_path: Path) -> None:
    nodes = user_of_nodes(tmp_path, named)

    assert (nodes.user, nodes.group) == (user, group)


def test_a_user_who_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no user 'nemo'"):
        user_of_nodes(tmp_path, "nemo")


@pytest.mark.parametrize("named", ["root", str(UNKNOWN)])
def test_the_project_of_another_user_cannot_name_one(named: str, tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)

    assert user_of_nodes(tmp_path, None).user == user_of_nodes(tmp_path, "nobody").user == NOBODY
    with pytest.raises(SpecError, match="run as 'nobody'"):
        user_of_nodes(tmp_path, named)
