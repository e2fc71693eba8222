"""Run torch's profiler for some steps of a running script, when the agent has asked for it in the progress page.

The script notices nothing but the time. The profile is written beside the records of the rank, and an event names the file.
"""

from __future__ import annotations

import sys
from typing import Any

from ...shared.event_log import clock_of
from ...shared.frames import describe
from ..context import RankContext
from ..torch_hooks import points

_RUNNING, _SEEN = "profiles.running", "profiles.seen"


def install() -> None:
    points.AFTER_STEP.subscribe(_after_step)


def end(context: RankContext) -> None:
    if context.memory.get(_RUNNING):
        _stop(context)


def _after_step(context: RankContext, *_: Any) -> None:
    if not context.progress.get("profile_steps") or context.memory.get(_SEEN) == context.steps:
        return
    context.memory[_SEEN] = context.steps  # an optimizer made of others calls this more than once
    running = context.memory.get(_RUNNING)
    if running and context.steps >= running[2]:
        _stop(context)
    elif not running and context.steps + 1 >= context.progress.get("profile_first"):
        torch: Any = sys.modules["torch"]
        from torch import profiler

        try:
            made = profiler.profile(activities=[*torch.autograd._supported_activities()])
            made.start()
        except Exception as error:  # noqa: BLE001 - such as that the script itself is profiling
            context.progress.set("profile_steps", 0)
            context.events.emit("profiled", why=describe(error))
            return
        context.memory[_RUNNING] = (made, context.steps, context.steps + context.progress.get("profile_steps"))


def _stop(context: RankContext) -> None:
    made, before, _ = context.memory.pop(_RUNNING)
    context.progress.set("profile_steps", 0)
    path = context.progress.path.with_suffix(f".{before + 1}.profile")
    draft = path.with_name(f".{path.name}.json")
    try:
        made.stop()
        made.export_chrome_trace(str(draft))
        draft.replace(path)
    except Exception as error:  # noqa: BLE001 - such as a full disk
        context.events.emit("profiled", why=describe(error))
        return
    lag = round(clock_of(context.events.folder).lag(), 6)
    context.events.emit("profiled", file=path.name, first=before + 1, steps=context.steps - before, lag=lag)
