"""Hook the loaders and optimizers of a script, for recording and replaying in `composesim check`.

DataLoaders have no public hooks: `__init__`, `__iter__` and `__len__` of the class are wrapped, and `__next__` of its iterators, which
all kinds of loaders share. Optimizers have hooks for steps; their `__init__` is wrapped to number them. `up` sets none of these.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any, Callable

from ...shared.import_hooks import after_import


class Hooks:
    """What to do at each call; the base class lets everything happen as it would."""

    def loader_made(self, loader: Any) -> None: ...

    def iterate(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        return original(loader)

    def next_batch(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        return original(iterator)

    def length(self, loader: Any, original: Callable[[Any], int]) -> int:
        return original(loader)

    def optimizer_made(self, optimizer: Any) -> None: ...

    def before_step(self, optimizer: Any) -> None:
        """The gradients are complete."""

    def after_step(self, optimizer: Any) -> None: ...

    def computes_again(self) -> None:
        """An optimizer calls its closure again within one step."""

    def autograd(self, module: ModuleType) -> None:
        """torch.autograd has been imported."""


def set_hooks(hooks: Hooks) -> None:
    """Install these hooks."""
    after_import("torch.utils.data.dataloader", lambda module: _hook_loaders(module, hooks))
    after_import("torch.optim.optimizer", lambda module: _hook_optimizers(module, hooks))
    after_import("torch.autograd", hooks.autograd)


def _hook_loaders(module: ModuleType, hooks: Hooks) -> None:
    loader_type, iterator_type = module.DataLoader, module._BaseDataLoaderIter
    make, iterate, length, following = (
        loader_type.__init__,
        loader_type.__iter__,
        loader_type.__len__,
        iterator_type.__next__,
    )

    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807 - it becomes that method
        make(self, *arguments, **options)
        hooks.loader_made(self)

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807 - as above
        return hooks.iterate(self, iterate)

    @functools.wraps(length)
    def __len__(self: Any) -> int:  # noqa: N807 - as above
        return hooks.length(self, length)

    @functools.wraps(following)
    def __next__(self: Any) -> Any:  # noqa: N807 - as above
        return hooks.next_batch(self, following)

    loader_type.__init__, loader_type.__iter__, loader_type.__len__ = __init__, __iter__, __len__
    iterator_type.__next__ = __next__
    if hasattr(iterator_type, "next"):
        iterator_type.next = __next__


def _hook_optimizers(module: ModuleType, hooks: Hooks) -> None:
    make = module.Optimizer.__init__

    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807 - it becomes that method
        make(self, *arguments, **options)
        hooks.optimizer_made(self)

    module.Optimizer.__init__ = __init__

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

    handles = [
        module.register_optimizer_step_pre_hook(before),
        module.register_optimizer_step_post_hook(after),
    ]

    def when_steps_can_be_compiled(_: ModuleType) -> None:
        """Register the hooks again: compiled code must call them at every step, not the compiler once."""
        disable = sys.modules["torch"].compiler.disable
        for handle in handles:
            handle.remove()
        handles[:] = [
            module.register_optimizer_step_pre_hook(disable(before)),
            module.register_optimizer_step_post_hook(disable(after)),
        ]

    after_import("torch._dynamo", when_steps_can_be_compiled)


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
