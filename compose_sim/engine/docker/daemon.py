"""Query the Docker daemon over its socket, which is quicker than the docker command, and detect a daemon that hangs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from compose_sim.engine.host.docker_socket import answer_of, daemon_ids, docker_endpoint, request
from compose_sim.errors import DaemonError, EngineSilentError

_HINT = "docker version; sudo systemctl restart docker"
_PING_EVERY_S, _SILENT_S = 5.0, 60.0  # a run goes on without the daemon, so there is time
_HANGS_AFTER_S = 10.0  # how long a caller waits: an answer may take minutes, but a daemon answers a ping at once
NOT_FOUND, UNDER_WAY = 404, 409  # statuses: there is no such thing, or it is being removed


def responds() -> bool:
    """Return whether the daemon answers a ping."""
    try:
        return bool(answer_of("/_ping"))
    except OSError:
        return False


def ask(path: str, *, method: str = "GET", ignore: Collection[int] = (), **query: str) -> Any:
    """
    Return the daemon's answer; None if it has no content, or a status to `ignore`.

    Raises DaemonError if it cannot be reached or refuses, and EngineSilentError if it answers nothing any more.
    """
    what = f"{method} {quote(path, safe='/:@')}"
    patience = DaemonPatience(what)
    try:
        status, body = request(method, f"{quote(path, safe='/:@')}?{urlencode(query)}", waits=patience.check)
    except OSError as error:
        problem = f"the Docker daemon at '{docker_endpoint()}' does not answer: {error.strerror or error}"
        raise DaemonError(problem, hint="composesim doctor") from None
    if status in ignore:
        return None
    if not 200 <= status < 300:
        raise DaemonError(
            f"the Docker daemon refused '{what}'", evidence=body.decode(errors="replace"), hint="composesim doctor"
        )
    return json.loads(body) if body else None


def labeled(kind: str, label: str) -> list[dict[str, Any]]:
    """Return the containers or networks, as `kind` says, with a label; containers also if they do not run."""
    found: list[dict[str, Any]] = ask(f"/{kind}", all="true", filters=json.dumps({"label": [label]}))
    return found


class DaemonPatience:
    """How long to wait for a daemon that may hang."""

    def __init__(self, what: str) -> None:
        """Start to wait for `what`."""
        self._what, self._answered = what, time.monotonic()

    def check(self) -> None:
        """Raise EngineSilentError if the daemon has not answered a ping for long."""
        if responds():
            self._answered = time.monotonic()
        elif time.monotonic() - self._answered > _HANGS_AFTER_S:
            problem = (
                f"the Docker daemon at '{docker_endpoint()}' hangs: '{self._what}' waits for it, and it answers no ping"
            )
            raise EngineSilentError(problem, hint=_HINT)


@contextmanager
def ended_if_silent(follower: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a program that follows the daemon when the context ends, or when the daemon has not answered for a minute."""
    over = threading.Event()
    watch = threading.Thread(target=_kill_if_silent, args=(follower, over), daemon=True)
    try:
        watch.start()
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
