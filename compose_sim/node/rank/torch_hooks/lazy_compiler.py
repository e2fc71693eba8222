"""Let torch import its compiler when a script first uses it: an import of torch._dynamo takes as long as one of torch.

DistributedDataParallel and torch's optimizers import it in every script: the first to read a setting, the others to keep
the compiler out of a function. A compiler that has not been imported compiles nothing, and has its default settings. As soon as
it is imported, everything here is as torch made it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, Callable

from ...shared.frames import describe_with_our_line
from ...shared.import_hooks import wrap
from ..context import RankContext
from . import after_import, features, points

_COMPILER = "torch._dynamo"
_FEATURE = features.feature_of(__name__)
_NOT_COMPILED = "__dynamo_disable"  # on a function: what torch calls instead, to keep the compiler out
_marked: list[Any] = []
_originals: list[tuple[Any, CodeType]] = []


def install() -> None:
    """Set the hooks; they change nothing if the compiler has been imported."""
    after_import("torch._compile", _after_compile)
    after_import("torch.optim.optimizer", _after_optimizer)
    points.DDP_MADE.subscribe(_make_ddp, in_children=True)
    after_import(_COMPILER, lambda _: _restore())


def _restore() -> None:
    while _marked:
        function = _marked.pop()
        if getattr(function, _NOT_COMPILED, None) is function:
            delattr(function, _NOT_COMPILED)
    while _originals:
        function, code = _originals.pop()
        function.__code__ = code


def _after_compile(module: ModuleType) -> None:
    @wrap(module, "_disable_dynamo")
    def _disable_dynamo(original: Any, fn: Any = None, recursive: bool = True) -> Any:
        if fn is None:
            return functools.partial(module._disable_dynamo, recursive=recursive)
        disabled = original(fn, recursive)
        _attempt(_mark, fn)
        return disabled


def _mark(function: Any) -> None:
    with contextlib.suppress(AttributeError):  # such as a built-in function
        setattr(function, _NOT_COMPILED, function)
        _marked.append(function)


def _after_optimizer(module: ModuleType) -> None:
    @wrap(module, "_use_grad_for_differentiable")
    def _use_grad_for_differentiable(original: Any, func: Any) -> Any:
        step = original(func)
        _attempt(_leave_compiler_out, step, func)
        return step


def _leave_compiler_out(step: Any, function: Any) -> None:
    code, without = step.__code__, _without_compiler(function).__code__
    if "_dynamo" in code.co_names and code.co_freevars == without.co_freevars:
        _originals.append((step, code))
        step.__code__ = without


def _attempt(change: Callable[..., None], *values: Any) -> None:
    """Make a change unless the compiler has been imported. If it raises, this feature is off, and torch is as it was."""
    if _COMPILER in sys.modules or features.is_off(_FEATURE):
        return
    try:
        change(*values)
    except Exception as error:  # noqa: BLE001 - the script must still work
        features.raised(_FEATURE, describe_with_our_line(error))


def _without_compiler(func: Any) -> Any:
    """Return what torch makes of the `step` of an optimizer, without its calls of the compiler. It runs in torch's module."""

    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        import torch

        prev_grad = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(prev_grad)

    return _use_grad


def _make_ddp(_: RankContext, __: points.TorchCall) -> points.Steps:
    torch: Any = sys.modules["torch"]
    if _COMPILER in sys.modules:
        return
    defaults = torch._dynamo = _Defaults()
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is defaults:  # importing the compiler replaces it
            del torch._dynamo


@contextlib.contextmanager
def without_inductor() -> Iterator[None]:
    """Keep torch from importing its compiler, for seconds, to ask it for the lines of compiled code when there is none."""
    torch: Any = sys.modules["torch"]
    if "_inductor" in vars(torch):
        yield
        return
    compiled = SimpleNamespace(stack_frames_for_code=lambda *_: None)
    torch._inductor = SimpleNamespace(codecache=SimpleNamespace(PyCodeCache=compiled))
    try:
        yield
    finally:
        del torch._inductor


class _Defaults:
    """Stands for the compiler while DistributedDataParallel reads a setting; imports the compiler for anything else."""

    def __getattr__(self, name: str) -> Any:
        return _Utilities() if name == "utils" else getattr(importlib.import_module(_COMPILER), name)


class _Utilities:
    def __getattr__(self, name: str) -> Any:
        if name == "get_optimize_ddp_mode":
            return lambda: "ddp_optimizer"
        return getattr(importlib.import_module(f"{_COMPILER}.utils"), name)
