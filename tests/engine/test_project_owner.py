"""Root works in no project of another user, unless it trusts that user. Nodes in containers run as the owner, or as whom root names."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from compose_sim import assets
from compose_sim.engine.project_owner import TRUST, check_project, user_of_nodes
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


def test_nodes_of_a_trusted_project_run_as_its_owner_or_as_whom_root_names(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)

    users = [user_of_nodes(tmp_path, named).user for named in (None, "nobody", "root", str(UNKNOWN))]

    assert users == [NOBODY, NOBODY, 0, UNKNOWN]


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of another user, whom root does not trust."""
    for name in (TRUST, "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "foreign"
    folder.mkdir()
    os.chown(folder, UNKNOWN, UNKNOWN)
    return folder


@pytest.mark.parametrize("name", ["", "new", "new/folder"])
def test_a_folder_of_another_user_is_refused_also_for_a_new_folder(name: str, foreign: Path) -> None:
    with pytest.raises(SpecError) as refused:
        check_project(foreign / name)

    assert refused.value.message == f"this project belongs to the user {UNKNOWN}, who owns '{foreign}'"
    assert refused.value.hint.startswith(f"sudo -u '#{UNKNOWN}' composesim …")


def test_a_link_belongs_to_who_made_it_and_to_the_owner_of_its_target(foreign: Path, tmp_path: Path) -> None:
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.symlink_to(foreign)
    theirs.symlink_to(tmp_path)
    os.chown(theirs, UNKNOWN, UNKNOWN, follow_symlinks=False)

    for link in (own, theirs):
        with pytest.raises(SpecError, match=str(link)):
            check_project(link)
        with pytest.raises(SpecError, match=str(link)):
            check_project(tmp_path, link)


@pytest.mark.parametrize(
    ("variable", "value", "is_trusted"),
    [
        *((TRUST, value, True) for value in ("1", "true", "YES", "on")),
        *((TRUST, value, False) for value in ("", "0", "false", "no", "other")),
        *(("SUDO_UID", value, value == str(UNKNOWN)) for value in (str(UNKNOWN), "0", str(NOBODY), "")),
    ],
)
def test_root_trusts_who_called_sudo_and_all_if_it_says_so(
    variable: str, value: str, is_trusted: bool, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    if is_trusted:
        check_project(foreign)
    else:
        with pytest.raises(SpecError):
            check_project(foreign)


def test_our_own_files_are_trusted_but_not_a_path_that_only_begins_there(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = "/".join([".."] * len(assets.node_code().parts))
    with pytest.raises(SpecError):
        check_project(assets.node_code() / up / str(foreign).lstrip("/"))

    monkeypatch.setattr(assets, "own_files", lambda: (foreign,))
    check_project(foreign)
