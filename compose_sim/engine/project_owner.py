"""If root works in the project of another user, run what the project names as that user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compose_sim.errors import SpecError


@dataclass(frozen=True, slots=True)
class Owner:
    """The user whose rights a started program gets."""

    user: int
    group: int
    name: str
    home: str

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with those that name the user and the home folder replaced."""
        return {**variables, "HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def owner_of(project: Path) -> Owner | None:
    """Return the owner of a project if this process is root and the owner is not; else None: programs run as the caller."""
    if os.geteuid() != 0 or not project.exists():
        return None
    status = project.stat()
    return _owner(status.st_uid, status.st_gid)


def user_of_nodes(project: Path, named: str | None) -> Owner:
    """
    Return the user that nodes in containers run as: the caller, or the owner of the project if the caller is root.

    In a project of root, root can name another user. Raises SpecError if nobody has that name, or somebody else names one.
    """
    status = project.stat()
    is_root = os.geteuid() == 0
    user, group = (status.st_uid, status.st_gid) if is_root else (os.geteuid(), os.getegid())
    default = replace(_user(user), group=group)
    chosen = _find_user(named) if named else default
    if chosen.user == default.user:
        return default
    if not is_root or default.user:
        raise SpecError(
            f"nodes of '{project}' run as '{default.name}', and only root can choose another user, in a project of root",
            hint="leave --user out",
        )
    return chosen


def owner_of_process(pid: int) -> Owner | None:
    """Return the user who started a process if this process is root and that user is not; else None."""
    if os.geteuid() != 0:
        return None
    # The owner of the folder /proc/PID is root for a process that forbids core dumps.
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return _owner(int(fields["Uid"][0]), int(fields["Gid"][0]))


def as_user(owner: Owner | None) -> dict[str, Any]:
    """Return the arguments of `subprocess` that make the program run with the owner's rights."""
    return {"user": owner.user, "group": owner.group, "extra_groups": []} if owner else {}


def _owner(user: int, group: int) -> Owner | None:
    if user == 0:
        return None
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return Owner(user, group, str(user), "/")
    # The group of a folder may be one that the user is not in.
    return Owner(user, entry.pw_gid, entry.pw_name, entry.pw_dir)


def _find_user(named: str) -> Owner:
    if named.isdecimal():
        return _user(int(named))
    try:
        return _user(pwd.getpwnam(named).pw_uid)
    except KeyError:
        raise SpecError(
            f"this machine has no user '{named}'", hint="getent passwd lists them; a number works too"
        ) from None


def _user(number: int) -> Owner:
    """Return a user, who may be known in the nodes only."""
    try:
        entry = pwd.getpwuid(number)
    except (KeyError, OverflowError):
        return Owner(number, number, "node", "/")
    return Owner(number, entry.pw_gid, entry.pw_name, entry.pw_dir)
