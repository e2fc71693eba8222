"""Ask the Docker daemon on its socket, which takes a millisecond: the docker command and http.client take tens of them to start."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compose_sim.engine.host.answers import home_folder

_DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"  # of the context `default`
_HOST_OF_CONTEXT = ("Endpoints", "docker", "Host")
_IDS = struct.Struct("3i")  # process, user and group at the other end
_PART_BYTES = 1 << 16
_RESPONDS_WITHIN_S = 3.0  # if systemd holds the socket, a connection waits until the next daemon accepts it


@contextmanager
def connected() -> Iterator[socket.socket]:
    """Connect to the daemon; raise OSError if none accepts the connection in time."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_RESPONDS_WITHIN_S)
        connection.connect((docker_endpoint() or _DEFAULT_ENDPOINT).removeprefix("unix://"))
        yield connection


def answer_of(path: str) -> bytes:
    """Return the body of the daemon's answer to GET; raise OSError if it does not answer in time, or answers with an error."""
    status, body = request("GET", path)
    if status != 200:
        raise OSError(f"GET {path}: status {status}")
    return body


def request(method: str, path: str, *, waits: Callable[[], None] | None = None) -> tuple[int, bytes]:
    """
    Return the status and the body of the daemon's answer; raise OSError if there is none.

    It may take any time with `waits`, which is called every few seconds until it raises an error.
    """
    answer = b""
    with connected() as connection:
        # HTTP 1.0: the answer is not in chunks, and ends with the connection.
        connection.sendall(f"{method} {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        while True:
            try:
                part = connection.recv(_PART_BYTES)
            except TimeoutError:
                if not waits:
                    raise
                waits()
                continue
            if not part:
                break
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(f"{method} {path}: the daemon closed the connection")
    return int(words[1]), body


def daemon_ids() -> tuple[int, int, int]:
    """Return the process, the user and the group that opened the daemon's socket; raise OSError if no process accepts connections."""
    with connected() as connection:
        process, user, group = _IDS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _IDS.size))
    return process, user, group


def docker_endpoint() -> str:
    """Return the address that the docker command talks to; "" if it is unknown."""
    if endpoint := os.environ.get("DOCKER_HOST"):
        return endpoint
    name = os.environ.get("DOCKER_CONTEXT") or _setting(settings_file(), "currentContext") or "default"
    if name == "default":
        return _DEFAULT_ENDPOINT
    folder = hashlib.sha256(name.encode()).hexdigest()
    return _setting(settings_file().parent / "contexts" / "meta" / folder / "meta.json", *_HOST_OF_CONTEXT)


def settings_file() -> Path:
    """Return the file with the settings of the docker command."""
    return Path(os.environ.get("DOCKER_CONFIG") or home_folder(".docker"), "config.json")


def _setting(file: Path, *keys: str) -> str:
    """Return a text from one of Docker's files; "" if it is not there."""
    try:
        value = json.loads(file.read_text())
        for key in keys:
            value = value.get(key)
    except (OSError, ValueError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""
