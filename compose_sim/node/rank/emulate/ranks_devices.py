"""Do two ranks of a node use one device? NCCL refuses that when ranks first communicate, and so does this."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed

_checked: dict[int, Any] = {}


def check(group: Any, index: int) -> None:
    """Once a group: tell the others which device this rank uses, and raise NCCL's error where another of its node uses it too."""
    if _checked.get(id(group)) is group:
        return
    _checked[id(group)] = group
    import torch.distributed.distributed_c10d as c10d

    store = c10d._world.pg_map[group][1]
    rank, size = group.rank(), group.size()
    node = os.environ.get("COMPOSESIM_NODE", "")
    store.set(f"composesim/device/{rank}", f"{node} {index}")
    mine = f"{node} {index}".encode()
    for other in range(size):
        if other != rank and store.get(f"composesim/device/{other}") == mine:
            first, second = sorted((rank, other), reverse=True)
            raise torch.distributed.DistBackendError(
                "NCCL error in: composesim's emulation of CUDA on the CPU, invalid usage "
                "(run with NCCL_DEBUG=WARN for details)\n"
                "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
                f"Duplicate GPU detected : rank {first} and rank {second} both on CUDA device {index} of {node or 'this node'}"
            )
