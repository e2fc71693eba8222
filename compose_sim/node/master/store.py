"""Serve TCPStores to the ranks, one per round, for the master.

Arguments of the role `store`: [--whole]

This is a separate process because it imports only torch's C extension, which provides a TCPStore in 0.2 s instead of
1 s. A torch that does not work this way may abort, which must not end the master; the master then starts this process
again with `--whole`.

It reads lines `open HOST PORT` and answers each with the port of the new store, `taken` if another process listens on
PORT, or `error TEXT`; it ends when standard input does. HOST is 127.0.0.1 (this machine only) or 0.0.0.0.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
from collections import deque
from types import ModuleType
from typing import Any

_KEPT = 4


def main(arguments: list[str]) -> int:
    """Serve stores until standard input ends."""
    # An interrupt from a terminal is for the master, which ends this process when the last node has left.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        make_store = whole_torch() if "--whole" in arguments else torch_extension()
    except ImportError as error:
        if "--whole" in arguments:
            print(f"error {error}", flush=True)
        return 1
    # Ranks of a round that has just ended may still use its store. Older ones would each cost a thread and a port.
    stores: deque[Any] = deque(maxlen=_KEPT)
    for line in sys.stdin:
        try:
            _, host, port = line.split()
            store = _open(make_store, host, int(port))
            print(store.port, flush=True)
            stores.append(store)  # and the oldest one closes, which takes longer than answering
        except (RuntimeError, OSError) as error:  # torch's DistNetworkError is a RuntimeError
            text = " ".join(str(error).split())
            print("taken" if "address already in use" in text.lower() else f"error {text}", flush=True)
    os._exit(0)  # nothing is left to do, and torch takes time to exit


def _open(make_store: Any, host: str, port: int) -> Any:
    options: dict[str, Any] = {}
    if host == "127.0.0.1":  # torch listens on all interfaces, unless it is given a socket that already listens
        listener = socket.create_server((host, port), backlog=1024)
        port = listener.getsockname()[1]
        # The store closes the socket. Not every version of torch's libuv backend accepts one.
        options = {"master_listen_fd": listener.detach(), "use_libuv": False}
    return make_store(host, port, None, True, wait_for_workers=False, **options)


def torch_extension() -> Any:
    """Return the class TCPStore from torch's C extension, without the 0.8 s for torch's Python code."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise ModuleNotFoundError("No module named 'torch'")
    # The extension imports these when it is initialized, and only needs them to exist.
    _stand_in("torch").__path__ = list(spec.submodule_search_locations or ())
    _stand_in("torch.distributed")
    _stand_in("torch.futures").Future = type("Future", (), {})  # type: ignore[attr-defined]
    extension = importlib.import_module("torch._C")
    extension._c10d_init()
    return importlib.import_module("torch._C._distributed_c10d").TCPStore


def whole_torch() -> Any:
    """Return the documented class TCPStore."""
    return importlib.import_module("torch.distributed").TCPStore


def _stand_in(name: str) -> ModuleType:
    sys.modules[name] = ModuleType(name)
    return sys.modules[name]
