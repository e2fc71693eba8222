"""Refuse to work as root in the project of another user, as git does, and choose the user of nodes in containers."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from compose_sim import assets
from compose_sim.errors import SpecError

TRUST = "COMPOSESIM_TRUST_PROJECT"  # a variable of the caller; --trust-project sets it
_YES = ("1", "on", "true", "yes")


@dataclass(frozen=True, slots=True)
class NodeUser:
    """The user that nodes in containers run as."""

    user: int
    group: int
    name: str


def check_project(folder: Path, *files: Path) -> None:
    """
    Raise SpecError if this process is root, and a project or one of these files of it belongs to another user.

    Such a user can have composesim execute anything. A folder that does not exist yet counts as the one that it will be made in.
    A link belongs to two users: the one who made it, and the owner of what it leads to.
    """
    if os.geteuid() != 0:
        return
    existing = next((each for each in (folder, *folder.absolute().parents) if os.path.lexists(each)), folder)
    for path in (existing, *files):
        for follow in (False, True):
            with suppress(OSError):
                check_user(path.stat(follow_symlinks=follow).st_uid, path)


def check_user(user: int, path: Path) -> None:
    """Raise SpecError if this process is root, and does not trust the user to whom a file belongs. Our own files are trusted."""
    if is_trusted(user) or any(path.resolve().is_relative_to(ours) for ours in assets.own_files()):
        return
    try:
        name = login = pwd.getpwuid(user).pw_name
    except KeyError:
        name, login = f"the user {user}", f"'#{user}'"
    raise SpecError(
        f"this project belongs to {name}, who owns '{os.path.abspath(path)}'",
        evidence="what a project names, such as a script or an interpreter, would run as root",
        hint=f"sudo -u {login} composesim …, or let it do all that root can: composesim --trust-project …",
    )


def is_trusted(user: int) -> bool:
    """Return whether files of a user may decide what this process does: root trusts itself, and who called sudo."""
    if os.geteuid() != 0 or user == 0:
        return True
    return str(user) == os.environ.get("SUDO_UID") or os.environ.get(TRUST, "").lower() in _YES


def user_of_nodes(project: Path, named: str | None) -> NodeUser:
    """
    Return the user that nodes in containers run as: the caller, or the owner of the project if the caller is root.

    Root can name another user. Raises SpecError if no user has that name, or if another user than root names one.
    """
    status = project.stat()
    is_root = os.geteuid() == 0
    user, group = (status.st_uid, status.st_gid) if is_root else (os.geteuid(), os.getegid())
    default = replace(_user(user), group=group)
    chosen = _find_user(named) if named else default
    if chosen.user == default.user:
        return default
    if not is_root:
        raise SpecError(
            f"nodes of '{project}' run as '{default.name}', and only root can choose another user",
            hint="leave --user out",
        )
    return chosen


def _find_user(named: str) -> NodeUser:
    if named.isdecimal():
        return _user(int(named))
    try:
        return _user(pwd.getpwnam(named).pw_uid)
    except KeyError:
        raise SpecError(
            f"this machine has no user '{named}'", hint="getent passwd lists them; a number works too"
        ) from None


def _user(number: int) -> NodeUser:
    """Return a user, who may be known in the nodes only."""
    try:
        entry = pwd.getpwuid(number)
    except (KeyError, OverflowError):
        return NodeUser(number, number, "node")
    return NodeUser(number, entry.pw_gid, entry.pw_name)
