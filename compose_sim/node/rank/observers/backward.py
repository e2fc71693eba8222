"""Wrap torch.autograd.backward once, for all observers of backward passes.

    backward.before.append(function)    function(context, tensors, options) runs before each outermost backward pass of the rank
    backward.after.append(function)     function(context, failed) runs when it has ended

`tensors` is what backward was called on (a tensor, or a sequence of them), `options` are the keyword arguments, such as retain_graph.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any, Callable

from ..context import RankContext, here
from ..torch_hooks import after_import

before: list[Callable[[RankContext, Any, dict[str, Any]], None]] = []
after: list[Callable[[RankContext, bool], None]] = []

_POSITIONS = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_depth = 0


def install() -> None:
    after_import("torch.autograd", _after_autograd)
    after_import("torch._dynamo", _after_dynamo)


def _after_autograd(module: ModuleType) -> None:
    # Autograd has no hook for a whole backward pass; Tensor.backward looks this function up at each call.
    original = module.backward

    @functools.wraps(original)
    def backward(tensors: Any, *arguments: Any, **options: Any) -> Any:
        global _depth
        context = here()
        if context is None or _depth:  # a checkpointed part of the model is computed again within the outer pass
            return original(tensors, *arguments, **options)
        _call(before, context, tensors, {**dict(zip(_POSITIONS, arguments)), **options} if arguments else options)
        _depth += 1
        failed = True
        try:
            result = original(tensors, *arguments, **options)
            failed = False
        finally:
            _depth -= 1
            _call(after, context, failed)
        return result

    backward.ours = True  # type: ignore[attr-defined]
    module.backward = backward  # type: ignore[attr-defined]


def _after_dynamo(_: ModuleType) -> None:
    """Keep the compiler out of our code; the compiler handles what is inside as it would without us."""
    global _call
    torch: Any = sys.modules["torch"]
    _call = torch.compiler.disable(_call)
    if hasattr(torch.autograd.backward, "ours"):
        torch.autograd.backward = torch.compiler.disable(torch.autograd.backward, recursive=False)


def _call(functions: list[Callable[..., None]], context: RankContext, *values: Any) -> None:
    for function in functions:
        context.guard(function.__module__, function, *values)
