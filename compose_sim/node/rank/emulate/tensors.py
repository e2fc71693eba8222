"""What happens when a script calls torch? CUDA devices are taken out of the arguments, the CPU computes, the result gets its tag."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from . import devices, generators, refusals
from .devices import CPU
from .meeting import meet, tensors_in
from .tags import PINNED, put, tag_of

Special = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_torch: Any = torch
_Tensor: Any = torch.Tensor
# What a few functions do that is not "compute where the arguments are"; conversions.py and others fill it.
special: dict[Any, Special] = {}
_constructors: frozenset[Any] = frozenset()
_Parameter: Any = torch.nn.Parameter


def as_it_is(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the CPU's tensor answers is the answer."""
    return func(*args, **kwargs)


class EmulatedCuda(TorchFunctionMode):
    """The mode that every thread of an emulating process has, below all that the script itself may add."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for each function of its own, with the mode off. Short, as it runs hundreds of times a step."""
        own = special.get(func)
        if own is not None:
            if own is as_it_is:
                return func(*args, **kwargs) if kwargs else func(*args)
            return own(func, args, kwargs or {})
        if kwargs:
            if generators.own or func in _constructors or not _TELLING.isdisjoint(kwargs):
                return _call_with_options(func, args, dict(kwargs))
            tensors = (*args, *kwargs.values())
        elif generators.own:
            return _call_with_options(func, args, {})
        else:
            tensors = args
        tag = None
        for argument in tensors:
            kind = type(argument)
            if kind is _Tensor or kind is _Parameter:
                other = argument._composesim_device
            elif kind in _NEITHER:
                continue
            elif kind in _SEQUENCES:
                other = _tag_in(func, argument)
            elif isinstance(argument, _Tensor):
                other = argument._composesim_device
            else:
                continue
            if other is not tag and other is not None:  # small integers: one object each
                if tag is not None:
                    tag = meet(func, args, kwargs)
                    break
                tag = other
        if tag is None and func in _constructors:
            return _construct(func, args, {})
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except NotImplementedError as error:
            raise refusals.told(error) from None
        if type(result) is _Tensor:
            result._composesim_device = tag if tag is not None else _tag_of_new(tensors)
        elif result is not None and type(result) not in _PLAIN:
            put(result, tag if tag is not None else _tag_of_new(tensors))
        return result


_SEQUENCES = (list, tuple)
_NEITHER = frozenset(
    (int, float, bool, str, type(None), torch.dtype)
)  # most other arguments: no tensors, and none inside
_TELLING = frozenset(("device", "pin_memory", "generator"))  # options that say where a result is, or must be made
_PLAIN = (int, bool, float, str, torch.Size, torch.dtype)


def _tag_in(func: Any, sequence: Any) -> int | None:
    tag = None
    for argument in sequence:
        if isinstance(argument, _Tensor):
            other = argument._composesim_device
            if other is not tag and other is not None:
                if tag is not None:
                    return meet(func, (sequence,))
                tag = other
    return tag


def _tag_of_new(args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> int | None:
    """Of a result for which no argument told: made from nothing it is on the CPU, made from untagged tensors it has no tag."""
    return CPU if next(tensors_in(args, kwargs), None) is None else None


def _call_with_options(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("pin_memory"):
        return _pinned(func, args, kwargs)
    device = kwargs.get("device")
    if device is not None or func in _constructors:
        return _construct(func, args, kwargs)
    tag = meet(func, args, kwargs)
    generators.check(func, kwargs, tag)
    with generators.drawing(func, tag, kwargs):
        result = func(*args, **kwargs)
    return put(result, tag if tag is not None else _tag_of_new(args, kwargs))


def _pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Only memory of the CPU can be pinned; here it is remembered that it is."""
    result = _call_with_options(func, args, {**kwargs, "pin_memory": False})
    if isinstance(result, _Tensor):
        if tag_of(result) != CPU:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        setattr(result, PINNED, True)
    return result


def _construct(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that takes `device`: a constructor, or one such as zeros_like that is told where."""
    device = kwargs.get("device")
    if device is None:
        source = next(tensors_in(args), None)
        if source is not None and func in (torch.as_tensor, torch.asarray):
            return _at(func, args, kwargs, tag_of(source))
        device = default_device()
        if device is None:  # other modes of the script may still choose one
            with generators.drawing(func, CPU, kwargs):
                return put(func(*args, **kwargs), CPU)
    tag = devices.index_of(device)
    if tag == CPU:
        if str(device).startswith("cpu"):
            with generators.drawing(func, CPU, kwargs):
                return put(func(*args, **kwargs), CPU)
        return func(*args, **kwargs)  # meta, and others that are no business of ours
    return _at(func, args, kwargs, tag)


def _at(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tag: int) -> Any:
    generators.check(func, kwargs, tag)
    source: Any = next(tensors_in(args), None)
    if tag != CPU:
        kwargs["device"] = "cpu"
    with generators.drawing(func, tag, kwargs):
        result = func(*args, **kwargs)
    if result is source and source._composesim_device != tag:
        result = result.clone()  # as_tensor(a, device="cuda") of a CPU tensor is a copy
    return put(result, tag)


def default_device() -> Any:
    """What `torch.set_default_device` or `with torch.device(…)` chose; None where nobody did."""
    from torch.utils import _device

    return _device.CURRENT_DEVICE


def _leave_default_device_to_us() -> None:
    """
    Let torch's own mode for a default device be silent where that is CUDA.

    It is asked after ours, and also below calls that ours answers, where all is on the CPU.
    """
    from torch.utils._device import DeviceContext

    context: Any = DeviceContext
    real = context.__torch_function__

    def answer(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device.type == "cuda":
            return func(*args, **(kwargs or {}))
        return real(self, func, types, args, kwargs)

    context.__torch_function__ = answer


def is_on_here() -> bool:
    """Whether this code runs with the mode, as a script's does, not below a call that the mode answers."""
    return any(isinstance(mode, EmulatedCuda) for mode in _get_current_function_mode_stack())


def resumed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, run with the mode wherever it is called from."""

    @functools.wraps(function)
    def with_mode(*arguments: Any, **options: Any) -> Any:
        with _torch._C._EnableTorchFunction():
            if is_on_here():
                return function(*arguments, **options)
            with EmulatedCuda():
                return function(*arguments, **options)

    return with_mode


def _shorten_the_way_of_functions() -> None:
    """
    Have functions that torch has in Python reach the mode more quickly.

    They ask for it through torch's handle_torch_function, which is made for several modes and classes, and costs as much as a
    small operation. Where ours is the only mode, it is what would have been called.
    """
    from torch._C import _len_torch_function_stack, _pop_torch_function_stack, _push_on_torch_function_stack

    functional: Any = torch.nn.functional
    real = functional.handle_torch_function
    answer = EmulatedCuda.__torch_function__

    def handle_torch_function(public_api: Any, relevant_args: Any, *args: Any, **kwargs: Any) -> Any:
        if _len_torch_function_stack() == 1:
            mode: Any = _pop_torch_function_stack()
            try:
                if type(mode) is EmulatedCuda:
                    return answer(mode, public_api, (), args, kwargs)
            finally:
                _push_on_torch_function_stack(mode)
        return real(public_api, relevant_args, *args, **kwargs)

    functional.handle_torch_function = handle_torch_function


def _resume_in_backward() -> None:
    """
    Have the mode on in what the script runs during a backward pass: its own functions, hooks, recomputed forwards.

    `tensor.backward()` is itself a call that the mode answers, and is off in. All ways lead through one function.
    """
    run = resumed(_torch.autograd.graph._engine_run_backward)
    _torch.autograd.graph._engine_run_backward = _torch.autograd._engine_run_backward = run


def _resume_in_saved_tensors_hooks() -> None:
    """
    Have the mode on in what is asked when a forward saves a tensor: checkpointing compares devices there with the recomputed.

    torch calls these hooks from inside the operation, which the mode answers, and is off in.
    """
    hooks: Any = _torch.autograd.graph.saved_tensors_hooks
    real = hooks.__init__

    @functools.wraps(real)
    def init(self: Any, pack_hook: Any, unpack_hook: Any) -> None:
        real(self, resumed(pack_hook), resumed(unpack_hook))

    hooks.__init__ = init


def install() -> None:
    """Have the mode on in this thread from now on."""
    _resume_in_backward()
    _resume_in_saved_tensors_hooks()
    _shorten_the_way_of_functions()
    _leave_default_device_to_us()
    global _constructors
    from torch.utils._device import _device_constructors

    _constructors = frozenset(_device_constructors())
    mode: Any = EmulatedCuda()
    mode.__enter__()
