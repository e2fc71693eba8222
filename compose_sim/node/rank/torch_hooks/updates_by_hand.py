"""Follow the updates of a script that makes none of torch's optimizers, as steps of one that stands for its own code.

A step begins with the first change of a parameter after a backward pass, before which all gradients are complete, and ends when a
module is called, a batch is taken or another backward pass begins. A mode sees the changes; it is entered once, when a module is
called outside of the script's own modes, and left if the script makes an optimizer after all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...records.models import BY_HAND
from ...records.record import Place
from ...shared import emulation
from ..context import RankContext, place
from ..tracked import Outermost
from . import points

_UPDATES = "updates_by_hand.updates"
_RESULTS = {  # of collectives that write into a tensor which the rank gives
    **dict.fromkeys(("broadcast", "all_reduce", "scatter"), "tensor"),
    **dict.fromkeys(("all_gather_single", "all_gather_into_tensor"), "output_tensor"),
    "all_gather": "tensor_list",
}
_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__")
_NO_CHANGE = ("requires_grad_", "share_memory_", "detach_")


@dataclass
class Updates:
    """The updates of one rank."""

    mode: Any = None
    called: Outermost = field(default_factory=Outermost)
    storages: frozenset[int] = frozenset()  # of the parameters
    parameters: list[Any] = field(default_factory=list)
    optimizer: Any = None  # that stands for the script's code
    is_over: bool = False  # the script has made an optimizer
    backwards: int = 0
    awaits_change: bool = False  # since a backward pass
    is_stepping: bool = False
    at: Place | None = None  # of the first change


def begin(context: RankContext) -> None:
    if context.thorough:
        follow(context)


def end(context: RankContext) -> None:
    if _UPDATES in context.memory and sys.exc_info()[0] is None:
        _end_step(context)


def follow(context: RankContext) -> None:
    """Report updates by hand to the subscribers of steps from now on."""
    if _UPDATES in context.memory:
        return
    context.memory[_UPDATES] = Updates()
    points.OPTIMIZER_MADE.subscribe(_made)
    points.BACKWARD.subscribe(_backward)
    points.BATCH_TAKEN.subscribe(_take)
    points.COLLECTIVE.subscribe(_collective)
    points.MODULE_CALLED.subscribe(_module_called, first=True)


def stands_in(optimizer: Any) -> bool:
    """Return whether an optimizer is not the script's own, but stands for its updates by hand."""
    return type(optimizer).__name__ == BY_HAND


def place_of_step(context: RankContext) -> Place | None:
    """Return the line that makes the step that ends now."""
    updates: Updates | None = context.memory.get(_UPDATES)
    return updates.at if updates is not None and updates.is_stepping else place()


def _made(context: RankContext, call: points.TorchCall) -> None:
    if not stands_in(call.owner):
        updates: Updates = context.memory[_UPDATES]
        updates.is_over, updates.awaits_change = True, False


def _collective(context: RankContext, call: points.TorchCall) -> None:
    """Begin a step if parameters come from other ranks."""
    updates: Updates = context.memory[_UPDATES]
    if updates.awaits_change and call.name in _RESULTS:
        written = _tensors([call.value(_RESULTS[call.name])])
        if any(_storage_of(each) in updates.storages for each in written):
            _begin_step(context)


def _take(context: RankContext, _: points.TorchCall) -> None:
    _end_step(context)


def _module_called(context: RankContext, module: Any, *_: Any) -> None:
    _end_step(context)
    updates: Updates = context.memory[_UPDATES]
    if updates.is_over and updates.mode is None:
        return
    if updates.optimizer is None:
        updates.called.number(module)
    modes = sys.modules["torch"].overrides._get_current_function_mode_stack()
    if updates.mode is None and len(modes) == emulation.is_on():
        updates.mode = _mode_of(context)
        updates.mode.__enter__()
    elif updates.mode is not None and updates.is_over and modes and modes[-1] is updates.mode:
        updates.mode.__exit__(None, None, None)
        updates.mode = None


def _backward(context: RankContext, _: points.TorchCall) -> points.Steps:
    _end_step(context)
    yield
    updates: Updates = context.memory[_UPDATES]
    if updates.mode is not None and not updates.is_over:
        updates.backwards += 1
        is_due = updates.backwards & (updates.backwards - 1) == 0  # at 1, 2, 4, …: a search takes long
        if updates.optimizer is None and is_due:
            updates.parameters = _trained(updates.called.modules())
        updates.storages = frozenset(map(_storage_of, updates.parameters)) - {0}
        updates.awaits_change = True


def _end_step(context: RankContext) -> None:
    updates: Updates = context.memory[_UPDATES]
    if updates.is_stepping:
        points.AFTER_STEP.call(updates.optimizer, (), {})
        updates.is_stepping = False


def _begin_step(context: RankContext) -> None:
    updates: Updates = context.memory[_UPDATES]
    if updates.optimizer is None:
        kind = type(BY_HAND, (sys.modules["torch"].optim.Optimizer,), {})
        updates.optimizer = kind(updates.parameters, {})
    updates.awaits_change, updates.is_stepping, updates.at = False, True, place()
    points.BEFORE_STEP.call(updates.optimizer, (updates.optimizer,), {})


def _mode_of(context: RankContext) -> Any:
    """Return a mode that begins a step at the first change of a parameter."""
    updates: Updates = context.memory[_UPDATES]

    class Watching(sys.modules["torch"].overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, _: Any, given: Any = (), options: Any = None) -> Any:
            options = options or {}
            if updates.awaits_change:
                context.guard(__name__, _look, function, given, options)
            return function(*given, **options)

    return Watching()


def _look(context: RankContext, function: Any, given: Any, options: Any) -> None:
    if _changes(function, given, options, context.memory[_UPDATES].storages):
        _begin_step(context)


def _changes(function: Any, given: Any, options: Any, storages: frozenset[int]) -> bool:
    """Return whether a call changes a tensor with one of these storages."""
    name = getattr(function, "__name__", "")
    is_data = name == "__set__" and function.__self__ is sys.modules["torch"].Tensor.data  # and not the gradient
    if is_data or name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name not in _NO_CHANGE):
        return any(_storage_of(each) in storages for each in _tensors(given[:1]))
    return "out" in options and any(_storage_of(each) in storages for each in _tensors([options["out"]]))


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    tensor = sys.modules["torch"].Tensor
    for each in values:
        if isinstance(each, (list, tuple)):
            yield from _tensors(each)
        elif isinstance(each, tensor):
            yield each


def _shapes_of(module: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(each.shape)) for name, each in module.named_parameters()]


def _storage_of(tensor: Any) -> int:
    """Return the address of a tensor's storage; 0 if it has none of its own."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def _trained(called: Iterable[Any]) -> list[Any]:
    """Return the parameters of the modules to which gradients have come, in an order that is the same on all ranks."""
    from ..replay.wrapped_models import models_of

    modules = [*called, *sorted(models_of("torch.nn.modules.module", "Module"), key=_shapes_of)]
    held = [[each for each in module.parameters() if each.requires_grad] for module in modules]
    graded = {id(each): each for own in held if any(each.grad is not None for each in own) for each in own}
    return [*graded.values()]
