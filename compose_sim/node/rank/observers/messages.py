"""Record messages between two ranks: with whom, and when a rank was in the call or waited for one to arrive.

The n-th message that a rank sends to another is the n-th that the other receives from it. A message that comes from any rank
is not paired, and neither are those that NCCL combines.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import weakref
from types import ModuleType
from typing import Any, Callable

from ..context import RankContext, here, place, where
from ..torch_hooks import after_import, wrap
from . import collectives

_BLOCKING = ("send", "recv", "send_object_list", "recv_object_list")
_ALL = (*_BLOCKING, "isend", "irecv", "batch_isend_irecv")
_Value = Callable[[str], Any]

_arriving: weakref.WeakKeyDictionary[Any, tuple[str, str, int]] = weakref.WeakKeyDictionary()  # of irecv, until `wait`
_is_waiting_observed = False


def install() -> None:
    after_import("torch.distributed.distributed_c10d", _after_distributed)
    after_import("torch._dynamo", _after_dynamo)


def _after_distributed(module: ModuleType) -> None:
    for name in _ALL:
        if hasattr(module, name):
            setattr(module, name, _wrap(module, name, getattr(module, name)))


def _after_dynamo(module: ModuleType) -> None:
    """Keep the compiler out of our code, as for collectives."""
    global _begin, _finish
    disable = sys.modules["torch"].compiler.disable
    _begin, _finish = disable(_begin), disable(_finish)
    module.eval_frame.skip_code(_wrap(None, "", lambda: None).__code__)


def _wrap(module: Any, name: str, original: Callable[..., Any]) -> Any:
    positions = {parameter: index for index, parameter in enumerate(inspect.signature(original).parameters)}

    @functools.wraps(original)
    def message(*arguments: Any, **options: Any) -> Any:
        begun = _begin(module, name, positions, arguments, options)
        if begun is None:
            return original(*arguments, **options)
        result = None
        try:
            result = original(*arguments, **options)
        finally:
            _finish(name, begun, result)
        return result

    message._torchdynamo_disable = True  # type: ignore[attr-defined]  # a call that is not compiled is called
    return message


def _begin(
    module: Any, name: str, positions: dict[str, int], arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[RankContext, str, str, float] | None:
    """Return the context, what is done, between which ranks, and when it began; None if this is part of something else."""
    context = here()
    if context is None or collectives.is_inside():
        return None
    collectives.note_untracked_wait(context, name)
    if name == "batch_isend_irecv":  # its parts are recorded
        return None

    value = collectives.argument_reader(positions, arguments, options)
    pair = context.guard(__name__, _pair, module, name, value) or ""
    what = f"{name}{where(place())}"
    if name in _BLOCKING:  # messages follow no order that all ranks share
        context.wait_in(what, pair, 2 if pair else 0)
        context.flush()
    collectives.set_inside(True)
    return context, what, pair, time.monotonic()


def _finish(name: str, begun: tuple[RankContext, str, str, float], result: Any) -> None:
    context, what, pair, began = begun
    collectives.set_inside(False)
    context.progress.advance("collectives")
    context.wait_in("")
    if pair and name == "isend":
        context.times.wait(what, began, time.monotonic(), pair, 2)
    elif pair and name == "irecv":
        context.guard(__name__, _follow, what, pair, result)


def _pair(_: RankContext, module: Any, name: str, value: _Value) -> str:
    """Return the ranks of a message, such as "0>1"; "" if it may come from any rank."""
    side = "dst" if "send" in name else "src"
    group, peer = value("group"), value(side)
    if peer is None and value(f"group_{side}") is not None:
        peer = module.get_global_rank(group if group is not None else module.group.WORLD, value(f"group_{side}"))
    own = module.get_rank()
    return "" if peer is None else f"{own}>{peer}" if side == "dst" else f"{peer}>{own}"


def _follow(context: RankContext, what: str, pair: str, work: Any) -> None:
    """Count a message that is to arrive, and record it when the script waits for it."""
    number = context.times.count(pair)
    if work is None:
        return
    global _is_waiting_observed
    if not _is_waiting_observed:
        _is_waiting_observed = True
        wrap(sys.modules["torch"].distributed.Work, "wait")(_wait)
    _arriving[work] = (what, pair, number)


def _wait(original: Callable[..., Any], self: Any, *arguments: Any, **options: Any) -> Any:
    known, began = _arriving.pop(self, None) if _arriving else None, time.monotonic()
    try:
        return original(self, *arguments, **options)
    finally:
        context = here()
        if known and context is not None:
            what, pair, number = known
            context.times.wait(what, began, time.monotonic(), pair, 2, number)
