"""Let an editor debug this rank: debugpy listens on 127.0.0.1 inside the node, and one process relays one connection to it."""

from __future__ import annotations

import contextlib
import os
import select
import site
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ...shared import roles

_CHUNK = 65536
_LIBRARIES = "LIBRARY_ROOTS"  # debugpy's name
_ports: dict[int, int] = {}  # by process, because processes that the script forks have their own


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

    relay = subprocess.Popen(roles.command("debug-relay", str(_ports[os.getpid()])), stdin=link.fileno())
    ended = threading.Thread(target=_wait_for_end, args=(relay, debugpy.wait_for_client, on_end), daemon=True)
    ended.pydev_do_not_trace = ended.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    ended.start()
    debugpy.wait_for_client()
    if debugpy.is_client_connected():
        stop_at(frame)


def is_connected() -> bool:
    """Return whether an editor is debugging this process."""
    if os.getpid() not in _ports:
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
    if process in _ports:
        return ""
    try:
        import debugpy

        debugpy.configure(subProcess=False)  # otherwise it puts itself into every process that the script starts
        with _as_libraries(Path(__file__).parents[2]):
            _ports[process] = debugpy.listen(("127.0.0.1", 0))[1]
    except ImportError:
        return f"{sys.executable} has no debugpy"
    except RuntimeError as error:  # the script uses debugpy itself
        return " ".join(str(error).split())
    return ""


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


def _wait_for_end(relay: subprocess.Popen[bytes], wait_for_client: Any, on_end: Callable[[], object]) -> None:
    relay.wait()
    wait_for_client.cancel()
    on_end()


def main(arguments: list[str]) -> int:
    """Relay between standard input, which is a socket, and the adapter on the port that the argument names."""
    with socket.socket(fileno=0) as link, socket.create_connection(("127.0.0.1", int(arguments[0]))) as adapter:
        others = {link: adapter, adapter: link}
        while True:
            for each in select.select(list(others), [], [])[0]:
                try:
                    data = each.recv(_CHUNK)
                    others[each].sendall(data)
                except OSError:
                    return 0
                if not data:
                    return 0
