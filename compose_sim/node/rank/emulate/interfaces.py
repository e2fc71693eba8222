"""Choose a network interface as NCCL does, and raise its error if NCCL_SOCKET_IFNAME leaves none."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch

_VARIABLE = "NCCL_SOCKET_IFNAME"


def chosen(wanted: str, interfaces: list[str]) -> list[str]:
    """Return the interfaces that a value of NCCL_SOCKET_IFNAME allows.

    It lists beginnings of names, and names after `=`; after `^`, those to leave out.
    """
    is_left_out, text = wanted.startswith("^"), wanted.removeprefix("^")
    is_exact, text = text.startswith("="), text.removeprefix("=")
    parts = [each.partition(":")[0] for each in text.split(",") if each]
    named = [name for name in interfaces if any(name == part if is_exact else name.startswith(part) for part in parts)]
    return [name for name in interfaces if name not in named] if is_left_out else named


def require_one() -> None:
    """Raise NCCL's error unless this node has an interface that NCCL may use."""
    wanted = os.environ.get(_VARIABLE, "")
    found = [name for _, name in socket.if_nameindex()]
    if not wanted or not found or chosen(wanted, found):
        return
    distributed: Any = torch.distributed
    raise distributed.DistBackendError(
        "NCCL error in: composesim's emulation of CUDA on the CPU, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        f"Bootstrap : no socket interface found ({_VARIABLE}={wanted}, and this node has {', '.join(found)})"
    )
