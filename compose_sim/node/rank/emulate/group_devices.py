"""Know which device each group of NCCL uses on this rank, and raise NCCL's errors for another device, or one that two ranks use.

Until torch 2.14, it is that of the first tensor that goes through the group. Since torch 2.15, NCCL's communicator is made together
with the group, for the device that the script binds to it, or else for the device of LOCAL_RANK.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from typing import Any

import torch

from .. import context as rank_context
from . import devices

_checked: dict[int, Any] = {}  # groups in which no two ranks of a node use one device, by id
_made: Counter[str] = Counter()  # groups, by name
_bound: dict[int, tuple[Any, int]] = {}  # groups that have a device from the beginning, by id


def bind(c10d: Any, group: Any, device: Any, name: str) -> None:
    """Give a new group with this backend its device, and wait for the other ranks, if this torch does so."""
    is_new = name in ("nccl2", "nccl-lazy") or (name == "nccl" and os.environ.get("TORCH_DIST_USE_NCCL2") != "0")
    if not (is_new and hasattr(c10d, "_nccl2_device")):  # torch 2.14 has the class, too, but does not use it by itself
        return
    if device is None and multiprocessing.parent_process() is not None:  # mp.spawn: LOCAL_RANK is that of the parent
        return
    _, index = _bound.get(id(c10d._world.default_pg), (None, None))  # which a smaller group inherits
    if device is not None:
        index = devices.index_without_use(device)
    elif index is None:
        index = int(os.environ.get("LOCAL_RANK", group.rank())) % devices.count()
    _bound[id(group)] = group, index
    _check_one_device_per_rank(group, index, "making")


def check(group: Any, index: int) -> None:
    """Raise NCCL's error if a tensor on the device with this index may not go through the group."""
    known = _bound.get(id(group))
    if known is None or known[0] is not group:
        _check_one_device_per_rank(group, index, "the first collective of")
    elif known[1] != index:
        raise RuntimeError(f"Expected tensor on cuda:{known[1]} but found tensor on cuda:{index}")


def _check_one_device_per_rank(group: Any, index: int, what: str) -> None:
    """Check once per group that no other rank of this node uses the same device."""
    if _checked.get(id(group)) is group:
        return
    _checked[id(group)] = group
    import torch.distributed.distributed_c10d as c10d

    store = c10d._world.pg_map[group][1]
    rank, size = group.rank(), group.size()
    node = os.environ.get("COMPOSESIM_NODE", "")
    mine = f"{node} {index}"
    _made[group.group_name] += 1  # the store still holds the answers of a group that had this name and was destroyed
    key = f"composesim/device/{_made[group.group_name]}"
    store.set(f"{key}/{rank}", mine)
    context = rank_context.here()
    if context is not None:  # NCCL, too, waits here for the other ranks
        at = rank_context.where(rank_context.place())
        context.wait_in(f"{what} group {group.group_name}{at}", group.group_name, size)
    others = [store.get(f"{key}/{other}") if other != rank else b"" for other in range(size)]
    if context is not None:
        context.wait_in("")
    for other, its in enumerate(others):
        if its == mine.encode():
            raise _two_on_one(
                sorted((rank, other), reverse=True), index, node or "this node", is_bound=id(group) in _bound
            )


def _two_on_one(ranks: list[int], index: int, node: str, *, is_bound: bool) -> Exception:
    """Return the error for two ranks on one device: that of torch 2.15 and its NCCL, or the earlier one."""
    distributed: Any = torch.distributed
    if is_bound:
        return RuntimeError(
            "Failed to initialize NCCL communicator: invalid usage (run with NCCL_DEBUG=WARN for details) \n"
            "NCCL Last Error: Error: Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
            f"configuration.\n(emulated: rank {ranks[0]} and rank {ranks[1]} both on CUDA device {index} of {node})"
        )
    error: Exception = distributed.DistBackendError(
        "NCCL error in: composesim's emulation of CUDA on the CPU, invalid usage "
        "(run with NCCL_DEBUG=WARN for details)\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        f"Duplicate GPU detected : rank {ranks[0]} and rank {ranks[1]} both on CUDA device {index} of {node}"
    )
    return error
