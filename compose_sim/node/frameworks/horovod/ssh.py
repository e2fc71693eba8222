"""Configure ssh between the master and the nodes: one key pair per run, one host key per node, and nothing else allowed.

Private keys stay in the memory (tmpfs) of the container that owns them. The master's public key is in the shared folder,
where each node's sshd reads it; a node reports its public host key in the event `ssh`. Both sides run as the nodes'
unprivileged user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

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
