"""Where do ranks find each other's addresses? In a TCPStore, served by this process for the master, one store a round.

A process of its own, because torch is only half imported here: torch's C extension alone gives a TCPStore in 0.2 s instead of 1 s,
but should a torch not like that, it can abort, and must not take the master with it. The master then starts this again with `--whole`.

Reads `open HOST PORT` lines, answers each with a line: `PORT` (the one that the new store listens on), `taken` (PORT is)
or `error TEXT`; ends with its input. HOST is 127.0.0.1, to be reached from this machine alone, or 0.0.0.0.
"""

from __future__ import annotations

import importlib.util
import signal
import socket
import sys
from collections import deque
from types import ModuleType
from typing import Any

_KEPT = 4


def main(arguments: list[str]) -> int:
    """Serve stores until standard input ends."""
    # An interrupt from a terminal is for the master, who ends us when the last node has left.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    make_store = whole_torch() if "--whole" in arguments else torch_extension()
    # Ranks of a round that has just ended may still be reading theirs; those of long ago would cost a thread and a port each.
    stores: deque[Any] = deque(maxlen=_KEPT)
    for line in sys.stdin:
        try:
            _, host, port = line.split()
            store = _open(make_store, host, int(port))
            print(store.port, flush=True)
            stores.append(store)  # and the oldest one ends, which takes longer than to answer
        except (RuntimeError, OSError) as error:  # torch's DistNetworkError is a RuntimeError
            text = " ".join(str(error).split())
            print("taken" if "address already in use" in text.lower() else f"error {text}", flush=True)
    return 0


def _open(make_store: Any, host: str, port: int) -> Any:
    options: dict[str, Any] = {}
    if host == "127.0.0.1":  # torch listens on all interfaces, unless it is handed a socket that already listens
        listener = socket.create_server((host, port), backlog=1024)
        port = listener.getsockname()[1]
        # The store closes the socket with itself. Not every torch's libuv takes one.
        options = {"master_listen_fd": listener.detach(), "use_libuv": False}
    return make_store(host, port, None, True, wait_for_workers=False, **options)


def torch_extension() -> Any:
    """The class TCPStore, from torch's C extension without the 0.8 s of torch's Python code."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise ModuleNotFoundError("No module named 'torch'")
    # The extension asks for these while it initialises, and only needs that they exist.
    _stand_in("torch").__path__ = list(spec.submodule_search_locations or ())
    _stand_in("torch.distributed")
    _stand_in("torch.futures").Future = type("Future", (), {})  # type: ignore[attr-defined]
    extension = importlib.import_module("torch._C")
    extension._c10d_init()
    return importlib.import_module("torch._C._distributed_c10d").TCPStore


def whole_torch() -> Any:
    """The class TCPStore, as documented."""
    return importlib.import_module("torch.distributed").TCPStore


def _stand_in(name: str) -> ModuleType:
    sys.modules[name] = ModuleType(name)
    return sys.modules[name]
