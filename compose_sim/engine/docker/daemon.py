"""Find out whether the Docker daemon responds: in a millisecond, and without waiting for a daemon that is starting or hangs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compose_sim.engine.host.docker_socket import answer_of, daemon_ids, docker_endpoint

HINT = "docker version; sudo systemctl restart docker"
_PING_EVERY_S, _SILENT_S = 5.0, 60.0  # a run goes on without the daemon, so there is time


def responds() -> bool:
    """Return whether the daemon answers a ping."""
    try:
        return bool(answer_of("/_ping"))
    except OSError:
        return False


@contextmanager
def ended_if_silent(follower: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a program that follows the daemon when the context ends, or when the daemon has not answered for a minute."""
    over = threading.Event()
    watch = threading.Thread(target=_kill_if_silent, args=(follower, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        follower.kill()
        follower.communicate()


def _kill_if_silent(follower: subprocess.Popen[str], over: threading.Event) -> None:
    answered = time.monotonic()
    while not over.wait(_PING_EVERY_S):
        if responds():
            answered = time.monotonic()
        elif time.monotonic() - answered > _SILENT_S:
            follower.kill()
            return


def shares_our_network() -> bool:
    """Return whether we are root in the network namespace of the daemon, and may therefore change the firewall without its help."""
    if os.geteuid() != 0:
        return False
    try:
        return Path(f"/proc/{daemon_ids()[0]}/ns/net").samefile("/proc/self/ns/net")
    except OSError:  # such as for a daemon in another namespace of processes
        return False


def away() -> str:
    """Return the message for a daemon that was there when the run was planned."""
    endpoint = docker_endpoint()
    return f"the Docker daemon at '{endpoint}' stopped, restarted or hung during the run; see 'docker version', then run again"


def silent(argv: Sequence[str]) -> str:
    """Return the message for a daemon that accepts connections and answers nothing."""
    return (
        f"the Docker daemon at '{docker_endpoint()}' hangs: '{' '.join(argv[:4])}' waits for it, and it answers no ping"
    )
