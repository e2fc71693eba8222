"""When does the script compute gradients? One wrapper of torch.autograd.backward, for all observers that ask.

    backward.before.append(function)    function(watch, tensors, options) runs before each outermost backward pass of the rank
    backward.after.append(function)     function(watch, failed) runs when it has ended

`tensors` is what backward was called on (a tensor, or a sequence of them), `options` its keyword arguments, such as retain_graph.
"""

from __future__ import annotations

import functools
import sys
import traceback
from types import ModuleType
from typing import Any, Callable

from ...shared.import_hooks import after_import
from ..context import Watch, here

before: list[Callable[[Watch, Any, dict[str, Any]], None]] = []
after: list[Callable[[Watch, bool], None]] = []

_POSITIONS = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_FAILED = "backward.failed"
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
        watch = here()
        if watch is None or _depth:  # a checkpointed part of the model, computed again within the outer pass
            return original(tensors, *arguments, **options)
        _tell(before, watch, tensors, {**dict(zip(_POSITIONS, arguments)), **options})
        _depth += 1
        failed = True
        try:
            result = original(tensors, *arguments, **options)
            failed = False
        finally:
            _depth -= 1
            _tell(after, watch, failed)
        return result

    backward.ours = True  # type: ignore[attr-defined]
    module.backward = backward  # type: ignore[attr-defined]


def _after_dynamo(_: ModuleType) -> None:
    """Have the compiler leave our code alone, and see what is called in it as without us."""
    global _tell
    torch: Any = sys.modules["torch"]
    _tell = torch.compiler.disable(_tell)
    if hasattr(torch.autograd.backward, "ours"):
        torch.autograd.backward = torch.compiler.disable(torch.autograd.backward, recursive=False)


def _tell(functions: list[Callable[..., None]], watch: Watch, *values: Any) -> None:
    for function in functions:
        try:
            function(watch, *values)
        except Exception:  # noqa: BLE001 - this runs inside somebody's training
            if not watch.memory.get(_FAILED):
                watch.memory[_FAILED] = True
                watch.note("observer-failed", observer=__name__, traceback=traceback.format_exc())
