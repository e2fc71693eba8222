"""Configure ssh between the master and the nodes, and assign the ranks of a node to the sessions that request them.

Private keys stay in the memory (tmpfs) of the container that owns them. The master's public key is in the shared folder,
where each node's sshd reads it; a node reports its public host key in the event `ssh`. Both sides run as the nodes'
unprivileged user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Union

PORT = 2222  # an unprivileged user may not listen below 1024
RANK_SOCKET = "COMPOSESIM_RANK_SOCKET"  # the path of the socket on which sshd_starter.py listens for sessions
_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/sbin"  # sshd's folders, which are not on an unprivileged user's PATH


def program(name: str) -> str | None:
    """Return the full path of `ssh`, `sshd` or `ssh-keygen`, or None. sshd must be started by its full path."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}")


def missing() -> list[str]:
    """Return the programs of OpenSSH that this system lacks."""
    return [name for name in ("sshd", "ssh", "ssh-keygen") if program(name) is None]


def make_key(file: Path) -> str:
    """Make a key pair, `file` and `file`.pub, and return the public key; raises OSError or CalledProcessError."""
    options = ["-q", "-t", "ed25519", "-N", "", "-C", "composesim", "-f", str(file)]
    subprocess.run(
        [program("ssh-keygen") or "ssh-keygen", *options], check=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    return file.with_name(f"{file.name}.pub").read_text().strip()


def authorized_keys(shared: Path) -> Path:
    """Return the file with the master's public key."""
    return shared / ".ssh" / "authorized_keys"


def write_atomically(file: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file that other processes may read at any moment: they see the old or the new content, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(file)


def server_settings(*, host_key: Path, authorized: Path, rank_socket: Path) -> str:
    """Return the sshd_config of a node: only the run's key gives access, and only to run commands."""
    return f"""\
Port {PORT}
HostKey {host_key}
AuthorizedKeysFile {authorized}
PidFile none
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
# PAM needs root. The keys are in folders that all nodes, which run as the same user, may write to.
UsePAM no
StrictModes no
DisableForwarding yes
PermitTTY no
PermitUserEnvironment no
PermitUserRC no
PrintMotd no
UseDNS no
MaxSessions 4096
MaxStartups 4096
ClientAliveInterval 5
ClientAliveCountMax 3
SetEnv {RANK_SOCKET}={rank_socket}
LogLevel INFO
"""


def client_settings(folder: Path) -> str:
    """Return the ssh_config of the master; `folder` holds `key`, `known_hosts`, and one socket per node for the shared connection."""
    return f"""\
Port {PORT}
IdentityFile {folder}/key
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
HostKeyAlgorithms ssh-ed25519
UpdateHostKeys no
CheckHostIP no
BatchMode yes
PreferredAuthentications publickey
GSSAPIAuthentication no
ForwardAgent no
ConnectTimeout 10
ServerAliveInterval 2
ServerAliveCountMax 3
ControlPath {folder}/%n.sock
LogLevel ERROR
"""


def known_host(node: str, host_key: str) -> str:
    """Return a node's line of known_hosts."""
    return f"[{node}]:{PORT} {' '.join(host_key.split()[:2])}\n"


def locked_settings(folder: Path) -> str:
    """Return the ssh_config for other programs, which wait for a node's lock before they connect."""
    return f'Match exec "flock --shared {folder}/%n.lock true"\nMatch all\nInclude {folder}/config\n'


def wrapper(folder: Path) -> str:
    """Return a script that replaces `ssh`: OpenSSH with our settings, which later options cannot override."""
    return f'#!/bin/sh\nexec {program("ssh")} -F {folder}/locked -o StrictHostKeyChecking=yes "$@"\n'


Variables = dict[str, str]
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL

_LOCAL_RANK = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_SIZE = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
# The variables that a launcher sets for its ranks. As with every launcher, ranks get all others from their node.
_LAUNCHER_PREFIXES = ("HOROVOD_", "OMPI_", "ORTE_", "OPAL_", "PMIX_", "PRTE_")


@dataclass(frozen=True)
class ForkRank:
    """Start the rank of a slot for a session, with these variables."""

    slot: int
    variables: Variables


@dataclass(frozen=True)
class StopRank:
    """Send SIGTERM to the rank of a slot, and SIGKILL if it still runs GRACE_SECONDS later."""

    slot: int


@dataclass(frozen=True)
class AnswerSession:
    """Report to a session how the rank ended, or why there is none, and close the session."""

    session: int
    status: int
    error: str = ""


@dataclass(frozen=True)
class ReportExit:
    """Report to the agent that a rank has ended; `stopped` if that was because the session had ended."""

    slot: int
    status: int
    stopped: bool


Action = Union[ForkRank, StopRank, AnswerSession, ReportExit]


@dataclass
class _Slot:
    variables: Variables
    running: bool = False
    session: int | None = None  # that the running rank belongs to; None while the rank is being stopped
    next: tuple[int, Variables] | None = None  # the session that gets the slot after that


class SshSessions:
    """The sessions of one node, and the slots of its ranks."""

    def __init__(self) -> None:
        """Let sessions wait, because no round has begun."""
        self._slots: list[_Slot] = []
        self._early: dict[int, Variables] = {}

    def start_round(self, ranks: Sequence[Variables]) -> list[Action]:
        """Begin a round with these variables of each local rank."""
        was_running = [slot.running for slot in self._slots] + [False] * len(ranks)
        self._slots = [_Slot(variables, running) for variables, running in zip(ranks, was_running)]
        early, self._early = self._early, {}
        return [action for session, environment in early.items() for action in self.request(session, environment)]

    def request(self, session: int, environment: Variables) -> list[Action]:
        """Handle a session that requests the rank that the environment names."""
        if not self._slots:
            self._early[session] = environment
            return []
        number = _number(environment, _LOCAL_RANK)
        if number is None or not 0 <= number < len(self._slots):
            return [AnswerSession(session, 1, f"local rank {number} does not exist: this node has {len(self._slots)}")]
        slot = self._slots[number]
        if slot.session is not None or slot.next is not None:
            return [AnswerSession(session, 1, f"local rank {number} of this node is already running")]
        if slot.running:
            slot.next = (session, environment)
            return []
        return self._fork(number, session, environment)

    def left(self, session: int) -> list[Action]:
        """Handle the end of a session."""
        self._early.pop(session, None)
        for number, slot in enumerate(self._slots):
            if slot.next and slot.next[0] == session:
                slot.next = None
            if slot.session == session:
                slot.session = None
                return [StopRank(number)]
        return []

    def rank_ended(self, number: int, status: int) -> list[Action]:
        """Handle the end of a slot's rank, with an exit code or minus a signal."""
        slot = self._slots[number]
        session, slot.session, slot.running = slot.session, None, False
        actions: list[Action] = [ReportExit(number, status, stopped=session is None)]
        if session is not None:
            actions.append(AnswerSession(session, status))
        if slot.next:
            waiting, slot.next = slot.next, None
            actions += self._fork(number, *waiting)
        return actions

    def _fork(self, number: int, session: int, environment: Variables) -> list[Action]:
        slot = self._slots[number]
        slot.running, slot.session = True, session
        return [ForkRank(number, {**slot.variables, **rank_variables(environment)})]


def rank_variables(environment: Mapping[str, str]) -> Variables:
    """Return the variables that a launcher sets for one rank, with torch's names for the numbers of ranks."""
    variables = {name: value for name, value in environment.items() if name.startswith(_LAUNCHER_PREFIXES)}
    for name, names in (("WORLD_SIZE", _SIZE), ("LOCAL_WORLD_SIZE", _LOCAL_SIZE)):
        number = _number(environment, names)
        if number is not None:
            variables[name] = str(number)
    return variables


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    text = next((environment[name] for name in names if name in environment), "")
    return int(text) if text.isdecimal() else None
