"""Let an editor debug this rank: an adapter, which is a process of its own, gets the editor's connection from the rank."""

from __future__ import annotations

import contextlib
import os
import secrets
import site
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from ...shared import roles

_LIBRARIES = "LIBRARY_ROOTS"  # debugpy's name
_adapters: dict[int, socket.socket] = {}  # by process, because processes that the script forks have their own


def serve(link: socket.socket, frame: FrameType, on_end: Callable[[], object]) -> None:
    """
    Serve the Debug Adapter Protocol on `link`, and stop at `frame` once the editor is ready; return if it leaves before.

    `on_end` is called when the editor has left, which it may do long after this function has returned.
    """
    refusal = _refusal()
    link.sendall(f"{refusal}\n".encode())
    if refusal:
        on_end()
        return
    import debugpy  # type: ignore[import-untyped,unused-ignore]
    import pydevd  # type: ignore[import-not-found,unused-ignore]  # debugpy's own

    adapter, left = _adapters[os.getpid()], threading.Event()
    try:
        socket.send_fds(adapter, [b"\n"], [link.fileno()])
    except OSError:  # the adapter has been killed, and another one cannot take its place
        on_end()
        return
    ended = threading.Thread(target=_wait_for_end, args=(adapter, left, on_end), daemon=True)
    ended.pydev_do_not_trace = ended.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    ended.start()
    pydevd._wait_for_attach(cancel=left)  # as `debugpy.wait_for_client` does
    if debugpy.is_client_connected():
        stop_at(frame)


def is_connected() -> bool:
    """Return whether an editor is debugging this process."""
    if os.getpid() not in _adapters:
        return False
    import debugpy

    return bool(debugpy.is_client_connected())


def stop_at(frame: FrameType) -> None:
    """Stop in the connected editor."""
    import pydevd  # type: ignore[import-not-found,unused-ignore]  # debugpy's own

    pydevd.settrace(suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame)


def _refusal() -> str:
    """Start debugpy's adapter, once per process; return why that failed, or ""."""
    process = os.getpid()
    if process in _adapters:
        return ""
    try:
        import debugpy

        debugpy.configure(subProcess=False)  # otherwise it puts itself into every process that the script starts
        with _as_libraries(Path(__file__).parents[2]):
            _adapters[process] = _start(debugpy)
    except ImportError:
        return f"{sys.executable} has no debugpy"
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: the adapter has ended without an answer
        return " ".join(str(error).split())
    return ""


def _start(debugpy: Any) -> socket.socket:
    """Start an adapter, let debugpy connect to it with a token, and return the socket that leads to the adapter."""
    from _pydevd_bundle.pydevd_constants import (  # type: ignore[import-not-found,unused-ignore]
        get_global_debugger,
    )

    if get_global_debugger() is not None:  # the script's own, or that of the process that this one was forked from
        raise RuntimeError("this process has a debugger already")
    ours, theirs = socket.socketpair()
    with theirs:
        folder = str(Path(debugpy.__file__).parents[1])
        command, quiet = roles.command("debug-adapter", folder), subprocess.DEVNULL
        subprocess.run(command, stdin=theirs.fileno(), stdout=quiet, stderr=quiet, start_new_session=True)
    port, token = _read_line(ours).split()
    import pydevd  # type: ignore[import-not-found,unused-ignore]  # debugpy's own

    # As `debugpy.connect` does, which waits for an editor.
    pydevd.settrace(
        host="127.0.0.1",
        port=int(port),
        client_access_token=token,
        suspend=False,
        patch_multiprocessing=False,
        wait_for_ready_to_run=False,
        block_until_connected=True,
        notify_stdin=False,
        dont_trace_start_patterns=(str(Path(debugpy.__file__).parent),),
    )
    return ours


def _read_line(link: socket.socket) -> str:
    """Return the next line from the adapter; "" if it has ended."""
    line = b""
    while not line.endswith(b"\n") and (data := link.recv(1)):
        line += data
    return line.decode()


@contextlib.contextmanager
def _as_libraries(*folders: Path) -> Iterator[None]:
    """Have debugpy, which starts in this context, treat these folders as it does Python's own: "justMyCode" hides both."""
    before = os.environ.get(_LIBRARIES)
    own = [sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages()]
    os.environ[_LIBRARIES] = os.pathsep.join([before or os.pathsep.join(own), *map(str, folders)])
    try:
        yield
    finally:
        del os.environ[_LIBRARIES]
        if before:
            os.environ[_LIBRARIES] = before


def _wait_for_end(adapter: socket.socket, left: threading.Event, on_end: Callable[[], object]) -> None:
    _read_line(adapter)
    left.set()
    on_end()


def main(arguments: list[str]) -> int:
    """
    Serve editors as debugpy's own adapter does, but on connections from the rank, so that there is no port for editors.

    Only the rank connects to the port that is left: it knows the token. Standard input is a socket that leads to the rank.
    The argument is the folder of debugpy.
    """
    if os.fork():  # the adapter is no child of the rank, which may wait for its children, or end them
        return 0
    sys.path.append(arguments[0])
    names = ("adapter", "adapter.clients", "adapter.servers", "adapter.sessions")
    modules: list[Any] = [import_module(f"debugpy.{name}") for name in names]
    adapter, clients, servers, sessions = modules
    adapter.access_token = secrets.token_hex(32)
    with socket.socket(fileno=0) as rank:
        clients.listener = None  # which debugpy reads
        _, port = servers.serve("127.0.0.1")
        rank.sendall(f"{port} {adapter.access_token}\n".encode())
        while descriptors := socket.recv_fds(rank, 1, 1)[1]:
            clients.Client(socket.socket(fileno=descriptors[0]))  # which closes the socket
            sessions.wait_until_ended()
            rank.sendall(b"\n")
    return 0
