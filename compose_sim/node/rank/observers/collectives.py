"""Record every collective that the script issues, in order and with the line, before it can block."""

from __future__ import annotations

import threading

from ...records.process_groups import Collective, CollectiveFailed, LaterCollectives, UntrackedWait
from ...shared.frames import describe
from ..context import RankContext, place
from ..torch_hooks import points
from . import collective_calls, contrastive, gathers, lost_results, reduced_again, shared_buffers

_COUNT, _UNTRACKED = "collectives.count", "collectives.untracked_at"
_inside = threading.local()


def install() -> None:
    points.COLLECTIVE.subscribe(_follow)


def end(context: RankContext) -> None:
    if context.mode == "record":
        context.guard(lost_results.__name__, lost_results.settle)
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


def _follow(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Record the outermost collective of the thread if the rank takes part in it."""
    if is_inside() or not call.module.is_initialized() or not _note(context, call):
        return
    set_inside(True)
    try:
        yield
    finally:
        if call.error is not None:
            context.note(CollectiveFailed(describe(call.error)))
        elif context.mode == "record":
            context.guard(reduced_again.__name__, reduced_again.keep, call)
        set_inside(False)
        context.progress.advance("collectives")
        context.wait_in("")


def _note(context: RankContext, call: points.TorchCall) -> bool:
    """Record one collective; return False if this rank has no part in it."""
    memory = context.memory
    found = collective_calls.recall(context, call, place())
    if found is None:
        return False
    count = memory[_COUNT] = memory.get(_COUNT, 0) + 1
    more = None
    if context.mode in ("record", "replay"):
        more = context.guard(f"{__name__}.values", collective_calls.look_closer, call)
    if context.mode == "record":
        context.guard(gathers.__name__, gathers.remember, call)
        context.guard(contrastive.__name__, contrastive.remember, call)
        context.guard(shared_buffers.__name__, shared_buffers.look, call)
        context.guard(lost_results.__name__, lost_results.watch, call)
        context.guard(reduced_again.__name__, reduced_again.look, call)
    if found.count() or context.thorough:
        context.observations.note_often(Collective, f"{found.fields}{more or ''}")
    context.synchronizations += 1
    context.wait_in(f"{found.op} #{count}{found.where}", found.group.name, len(found.group.ranks))
    context.flush()
    return True
