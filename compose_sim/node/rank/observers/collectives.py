"""Record every collective that the script issues, in order and with the line, before it can block.

The functions of torch.distributed have no hooks, so each is wrapped in the module that defines it, before torch.distributed
copies it. The wrappers only read the arguments.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from types import ModuleType
from typing import Any, Callable

from ...records.process_groups import Collective, CollectiveFailed, LaterCollectives, UntrackedWait
from ...shared.frames import describe
from ..context import RankContext, here, place
from ..torch_hooks import after_import
from . import collective_calls, gathers

_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
_NAMES = (*collective_calls.OWN, *_OBJECTS, "barrier", "monitored_barrier", "new_group", "split_group")

_COUNT, _UNTRACKED = "collectives.count", "collectives.untracked_at"
_inside = threading.local()


def install() -> None:
    after_import("torch.distributed.distributed_c10d", _after_distributed)
    after_import("torch._dynamo", _after_dynamo)


def end(context: RankContext) -> None:
    later = collective_calls.later(context)
    if later:
        context.note(LaterCollectives(later))


def issued(context: RankContext) -> int:
    """Return how many collectives the script has issued so far."""
    return int(context.memory.get(_COUNT, 0))


def is_inside() -> bool:
    """Return whether this thread is in a collective or a message: what that is made of counts once."""
    return bool(getattr(_inside, "yes", False))


def set_inside(yes: bool) -> None:
    """Note that this thread enters or leaves a collective or a message."""
    _inside.yes = yes


def note_untracked_wait(context: RankContext, how: str) -> None:
    """Record that the rank may have waited for another by a message, a store, a lock or a sleep; once between two collectives."""
    if context.memory.get(_UNTRACKED) != context.synchronizations:
        context.memory[_UNTRACKED] = context.synchronizations
        context.note(UntrackedWait(how))


def argument_reader(
    positions: dict[str, int], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Callable[[str], Any]:
    """Return a function that returns the value of a parameter in a call; None if the call leaves it out."""

    def value(parameter: str) -> Any:
        if parameter in options:
            return options[parameter]
        index = positions.get(parameter, len(arguments))
        return arguments[index] if index < len(arguments) else None

    return value


def _after_distributed(module: ModuleType) -> None:
    for name in _NAMES:
        if hasattr(module, name):
            setattr(module, name, _wrap(module, name, getattr(module, name)))


def _after_dynamo(module: ModuleType) -> None:
    """Keep the compiler out of our code: it compiles each collective as it would without us, or calls it."""
    global _begin, _finish
    disable = sys.modules["torch"].compiler.disable
    _begin, _finish = disable(_begin), disable(_finish)
    module.eval_frame.skip_code(_wrap(None, "", _nothing).__code__)  # one code object serves all wrappers


def _nothing() -> None: ...


def _wrap(module: Any, name: str, original: Callable[..., Any]) -> Any:
    positions = {parameter: index for index, parameter in enumerate(inspect.signature(original).parameters)}

    @functools.wraps(original)
    def collective(*arguments: Any, **options: Any) -> Any:
        begun = _begin(module, name, positions, arguments, options)
        if begun is None:
            return original(*arguments, **options)
        try:
            return original(*arguments, **options)
        except BaseException as error:
            begun.note(CollectiveFailed(describe(error)))
            raise
        finally:
            _finish(begun)

    collective._torchdynamo_disable = True  # type: ignore[attr-defined]  # a call that is not compiled is called
    return collective


def _begin(
    module: Any, name: str, positions: dict[str, int], arguments: tuple[Any, ...], options: dict[str, Any]
) -> RankContext | None:
    """Return the rank's context if this is the outermost collective of the thread and the rank takes part in it."""
    context = here()
    if context is None or is_inside() or not module.is_initialized():
        return None

    value = argument_reader(positions, arguments, options)
    # If the arguments are wrong, the collective itself will raise.
    if not context.guard(__name__, _note, module, name, value, arguments, options):
        return None
    set_inside(True)
    return context


def _finish(context: RankContext) -> None:
    set_inside(False)
    context.progress.advance("collectives")
    context.wait_in("")


def _note(
    context: RankContext,
    module: Any,
    name: str,
    value: Callable[[str], Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> bool:
    """Record one collective; return False if this rank has no part in it."""
    memory = context.memory
    call = collective_calls.recall(context, module, name, value, arguments, options, place())
    if call is None:
        return False
    count = memory[_COUNT] = memory.get(_COUNT, 0) + 1
    more = None
    if context.mode == "record":
        more = context.guard(f"{__name__}.values", collective_calls.look_closer, name, value)
        context.guard(gathers.__name__, gathers.remember, name, value)
    if call.count() or context.thorough:
        context.observations.note_often(Collective, f"{call.fields}{more or ''}")
    context.synchronizations += 1
    context.wait_in(f"{call.op} #{count}{call.where}", call.group.name, len(call.group.ranks))
    context.flush()
    return True
