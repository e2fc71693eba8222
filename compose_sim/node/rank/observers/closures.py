"""Follow the steps of optimizers when the gradients are complete: a closure computes them within the step."""

from __future__ import annotations

from typing import Any, Callable

from ..context import RankContext
from ..torch_hooks import points

_Follow = Callable[[RankContext, Any], None]


def follow_gradients(complete: _Follow, again: Callable[[RankContext], None]) -> None:
    """
    Call `complete(context, optimizer)` at each step, before it uses the gradients.

    Call `again(context)` whenever an optimizer calls the closure once more within a step.
    """

    def before(context: RankContext, optimizer: Any, arguments: Any, options: Any) -> Any:
        given = len(arguments) > 1  # the first is the optimizer itself
        closure = arguments[1] if given else options.get("closure")
        if not callable(closure):
            complete(context, optimizer)
            return None
        calls = 0

        def computing() -> Any:
            nonlocal calls
            result = closure()
            calls += 1
            if calls == 1:
                context.guard(complete.__module__, complete, optimizer)
            else:
                context.guard(again.__module__, again)
            return result

        if given:
            return (optimizer, computing, *arguments[2:]), options
        return arguments, {**options, "closure": computing}

    before.__module__ = complete.__module__
    points.BEFORE_STEP.subscribe(before)
