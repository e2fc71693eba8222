"""Connect to another process of the run as soon as it listens."""

from __future__ import annotations

import contextlib
import socket
import time

_RETRY_SECONDS = 0.05


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """Connect over IPv4, and retry until the host is known and listens; raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError):
            return socket.create_connection((socket.gethostbyname(host), port), timeout=left)
        time.sleep(_RETRY_SECONDS)
    raise TimeoutError(f"nothing answers at {host}:{port} after {timeout:.0f} s")
