"""Hook the loaders, models and optimizers of a script, for recording and replaying in `composesim check`.

DataLoaders have no public hooks: `__init__`, `__iter__` and `__len__` of the class are wrapped, and `__next__` of the iterators,
which all kinds of loaders share. Modules have a hook for calls, and optimizers have hooks for steps. `up` sets none of these.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable

from ..torch_hooks import after_import, wrap


class Hooks:
    """What to do at each call. A subclass calls a recorder or a replayer, if there is one."""

    def call(self, what: Callable[[Any], Any]) -> Any:
        raise NotImplementedError

    def loader_made(self, loader: Any) -> None:
        self.call(lambda session: session.loaders.created(loader))

    def iterate(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        return original(loader)

    def next_batch(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        return original(iterator)

    def length(self, loader: Any, original: Callable[[Any], int]) -> int:
        return original(loader)

    def model_called(self, module: Any, given: Any) -> None:
        """A module is called with these arguments while gradients are recorded."""
        self.call(lambda session: session.called(module, given))

    def before_step(self, optimizer: Any) -> None:
        """The gradients are complete."""
        self.call(lambda session: session.before_step(optimizer))

    def after_step(self, optimizer: Any) -> None: ...

    def computes_again(self) -> None:
        """An optimizer calls the closure again within one step."""

    def autograd(self, module: ModuleType) -> None:
        """torch.autograd has been imported."""


def set_hooks(hooks: Hooks) -> None:
    """Install these hooks."""
    after_import("torch.utils.data.dataloader", lambda module: _hook_loaders(module, hooks))
    after_import("torch.optim.optimizer", lambda _: _hook_optimizers(hooks))
    after_import("torch.nn.modules.module", lambda module: _hook_models(module, hooks))
    after_import("torch.autograd", hooks.autograd)


def follow_steps(before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None) -> None:
    """Call these functions before and after each step of every optimizer."""
    called = [before, after]

    def register(module: Any) -> None:
        # Never registered again: a step, which iterates over the hooks, may be what imports the compiler.
        if before:
            module.register_optimizer_step_pre_hook(lambda *given: called[0](*given))  # type: ignore[misc]
        if after:
            module.register_optimizer_step_post_hook(lambda *given: called[1](*given))  # type: ignore[misc]

    def disable(_: ModuleType) -> None:
        # Compiled code must call the functions at every step, not the compiler once.
        called[:] = [each and sys.modules["torch"].compiler.disable(each) for each in (before, after)]

    after_import("torch.optim.optimizer", register)
    after_import("torch._dynamo", disable)


def _hook_loaders(module: ModuleType, hooks: Hooks) -> None:
    loader_type, iterator_type = module.DataLoader, module._BaseDataLoaderIter

    @wrap(loader_type, "__init__")
    def make(original: Callable[..., Any], self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        hooks.loader_made(self)

    wrap(loader_type, "__iter__")(lambda original, self: hooks.iterate(self, original))
    wrap(loader_type, "__len__")(lambda original, self: hooks.length(self, original))
    wrap(iterator_type, "__next__")(lambda original, self: hooks.next_batch(self, original))
    if hasattr(iterator_type, "next"):
        iterator_type.next = iterator_type.__next__


def _hook_models(module: ModuleType, hooks: Hooks) -> None:
    torch: Any = sys.modules["torch"]

    def before(called: Any, given: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            hooks.model_called(called, given)

    module.register_module_forward_pre_hook(before)


def _hook_optimizers(hooks: Hooks) -> None:
    def before(optimizer: Any, arguments: Any, options: Any) -> Any:
        given = len(arguments) > 1  # the first is the optimizer itself
        closure = arguments[1] if given else options.get("closure")
        if not callable(closure):
            hooks.before_step(optimizer)
            return None
        wrapped = _Closure(optimizer, closure, hooks)
        return (
            ((optimizer, wrapped, *arguments[2:]), options) if given else (arguments, {**options, "closure": wrapped})
        )

    def after(optimizer: Any, arguments: Any, options: Any) -> None:
        hooks.after_step(optimizer)

    follow_steps(before, after)


class _Closure:
    """A closure that computes the gradients within a step: they are complete when it has been called."""

    def __init__(self, optimizer: Any, closure: Callable[[], Any], hooks: Hooks) -> None:
        self.optimizer, self.closure, self.hooks, self.calls = optimizer, closure, hooks, 0

    def __call__(self) -> Any:
        result = self.closure()
        self.calls += 1
        if self.calls == 1:
            self.hooks.before_step(self.optimizer)
        else:
            self.hooks.computes_again()
        return result
