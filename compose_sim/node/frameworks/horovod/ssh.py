"""How does the master reach its nodes by ssh? By one key pair a run, one host key a node, and settings that allow nothing else.

The private keys stay in the memory (tmpfs) of whom they belong to. The master's public key lies in the shared folder, where each
node's sshd reads it; a node tells its own public host key as an event, `ssh`. Both sides run as the nodes' ordinary user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PORT = 2222  # an ordinary user may not listen below 1024; each node has all ports to itself
HOSTING = "COMPOSESIM_HOSTING"  # where, within a node, the process listens that starts ranks (hosting.py)
_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/sbin"  # where sshd is, on no ordinary user's PATH


def program(name: str) -> str | None:
    """The path of `ssh`, `sshd` or `ssh-keygen`; None where this system has none. sshd wants to be started by its whole path."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}")


def missing() -> list[str]:
    """What OpenSSH has and this system has not."""
    return [name for name in ("sshd", "ssh", "ssh-keygen") if program(name) is None]


def make_key(file: Path) -> str:
    """Make a key pair, `file` and `file`.pub; the public key. OSError or CalledProcessError where that fails."""
    command = [
        program("ssh-keygen") or "ssh-keygen",
        "-q",
        "-t",
        "ed25519",
        "-N",
        "",
        "-C",
        "composesim",
        "-f",
        str(file),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return file.with_name(f"{file.name}.pub").read_text().strip()


def authorized_keys(shared: Path) -> Path:
    """Where the master's public key lies."""
    return shared / ".ssh" / "authorized_keys"


def write_whole(file: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file that others read at any moment: the old one or the new one, never half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(file)


def server_settings(*, host_key: Path, authorized: Path, hosting: Path) -> str:
    """sshd_config of a node: the run's key opens it and nothing else does, to run commands and for nothing else."""
    return f"""\
Port {PORT}
HostKey {host_key}
AuthorizedKeysFile {authorized}
PidFile none
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
# What needs root, which nobody here is: PAM. The keys lie in folders that all nodes may write to, as the same user.
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
SetEnv {HOSTING}={hosting}
LogLevel INFO
"""


def client_settings(folder: Path) -> str:
    """ssh_config of the master; `folder` has its `key`, `known_hosts`, and a socket a node for the connection that sessions share."""
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
    """A node's line of known_hosts."""
    return f"[{node}]:{PORT} {' '.join(host_key.split()[:2])}\n"


def gated_settings(folder: Path) -> str:
    """The same for others' programs, which are let through to a node when its gate is open: a lock that we hold until then."""
    return f'Match exec "flock --shared {folder}/%n.gate true"\nMatch all\nInclude {folder}/config\n'


def wrapper(folder: Path) -> str:
    """What others find as `ssh`: OpenSSH with our settings, which their options come after and so cannot change."""
    return f'#!/bin/sh\nexec {program("ssh")} -F {folder}/gated -o StrictHostKeyChecking=yes "$@"\n'
