"""What another user of this machine can do: a function that runs as a user without rights, and the ports that it can reach."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - sockets need it, and a stranger may not read the folder of this Python
import json
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

import psutil

USER = 4343  # in no group, and the owner of nothing


def as_stranger(function: Callable[[], Any]) -> Any:
    """Return what the function returns, as JSON, in a child process that belongs to USER; raise what it raises as RuntimeError."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            os.write(writer, json.dumps(["returned", function()]).encode())
            code = 0
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(writer, json.dumps(["raised", repr(error)]).encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        how, value = json.loads(pipe.read())
    os.waitpid(child, 0)
    if how == "raised":
        raise RuntimeError(value)
    return value


def ports_of(run: str) -> list[int]:
    """Return the loopback ports on which the processes of a local run, and the commands that name it, listen."""
    return sorted({port for process in processes_of(run) for port in _ports(process)})


def processes_of(run: str) -> Iterable[psutil.Process]:
    """Yield the processes of a local run, and the commands that name it."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("COMPOSESIM_RUN") == run or run in process.cmdline():
                yield process
        except psutil.Error:
            continue


def _ports(process: psutil.Process) -> list[int]:
    try:
        return [each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []


def answer_of(port: int, *lines: bytes) -> bytes:
    """Return what a listener answers within 2 s to what is sent to it, one message after another."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
        try:
            for line in lines:
                link.sendall(line)
            while data := link.recv(65536):
                answer += data
        except OSError:  # closed, or nothing more
            pass
    return answer
