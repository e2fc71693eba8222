"""Record messages between two ranks: with whom, and when a rank was in the call or waited for one to arrive.

The n-th message that a rank sends to another is the n-th that the other receives from it. A message that comes from any rank
is not paired, and neither are those that NCCL combines.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

from ...records.process_groups import TakenFromAny
from ..context import RankContext, place, where
from ..torch_hooks import points
from . import collectives, shared_buffers

_BLOCKING = ("send", "recv", "send_object_list", "recv_object_list")
_arriving: weakref.WeakKeyDictionary[Any, tuple[str, str, int]] = weakref.WeakKeyDictionary()  # of irecv, until `wait`
_is_waiting_observed = False
_TAKEN, _MAX_TAKEN = "messages.taken", 2000


def install() -> None:
    points.MESSAGE.subscribe(_follow)


def _follow(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Record a message, unless it is part of something else."""
    if collectives.is_inside():
        return
    name = call.name
    collectives.note_untracked_wait(context, name)
    if name == "batch_isend_irecv":  # its parts are recorded
        return
    pair, what, work = _pair(call), f"{name}{where(place())}", None
    if name in _BLOCKING:  # messages follow no order that all ranks share
        context.wait_in(what, pair, 2 if pair else 0)
        context.flush()
    collectives.set_inside(True)
    began = time.monotonic()
    try:
        work = yield
    finally:
        collectives.set_inside(False)
        context.progress.advance("collectives")
        context.wait_in("")
        if pair and name == "isend":
            context.times.wait(what, began, time.monotonic(), pair, 2)
        elif pair and name == "irecv":
            _await(context, what, pair, work)
    if context.mode == "record" and name == "recv":
        context.guard(shared_buffers.__name__, shared_buffers.received, call.value("tensor"))
        if not pair:
            _note_sender(context, int(work), tuple(call.value("tensor").shape))


def _note_sender(context: RankContext, source: int, shape: tuple[int, ...]) -> None:
    count = context.memory[_TAKEN] = context.memory.get(_TAKEN, 0) + 1
    if count <= _MAX_TAKEN:
        context.note(TakenFromAny(source, shape, place()))


def _pair(call: points.TorchCall) -> str:
    """Return the ranks of a message, such as "0>1"; "" if it may come from any rank."""
    module, name, value = call.module, call.name, call.value
    side = "dst" if "send" in name else "src"
    group, peer = value("group"), value(side)
    if peer is None and value(f"group_{side}") is not None:
        peer = module.get_global_rank(group if group is not None else module.group.WORLD, value(f"group_{side}"))
    own = module.get_rank()
    return "" if peer is None else f"{own}>{peer}" if side == "dst" else f"{peer}>{own}"


def _await(context: RankContext, what: str, pair: str, work: Any) -> None:
    """Count a message that is to arrive, and record it when the script waits for it."""
    number = context.times.count(pair)
    if work is None:
        return
    global _is_waiting_observed
    if not _is_waiting_observed:
        _is_waiting_observed = True
        points.WORK_AWAITED.subscribe(_wait)
    _arriving[work] = (what, pair, number)


def _wait(context: RankContext, call: points.TorchCall) -> points.Steps:
    known, began = _arriving.pop(call.owner, None) if _arriving else None, time.monotonic()
    try:
        yield
    finally:
        if known:
            what, pair, number = known
            context.times.wait(what, began, time.monotonic(), pair, 2, number)
