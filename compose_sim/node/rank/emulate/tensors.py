"""Handle every call of torch: remove CUDA devices from the arguments, let the CPU compute, and tag the result."""

from __future__ import annotations

import functools
import re
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ...shared.import_hooks import wrap
from . import devices, generators, refusals
from .devices import CPU, PINNED, put, tag_of
from .meeting import meet, tensors_in

Handler = Callable[..., Any]

_torch: Any = torch
_Tensor: Any = torch.Tensor
_handlers: dict[Any, Handler] = {}
_constructors: frozenset[Any] = frozenset()
_Parameter: Any = torch.nn.Parameter


def for_call(*functions: Any) -> Callable[[Handler], Handler]:
    """Handle calls of these functions of torch by the decorated one, which gets the called function before the arguments.

    Those are the functions that need more than computing on the device of the arguments.
    """

    def register(handler: Handler) -> Handler:
        _handlers.update(dict.fromkeys(functions, handler))
        return handler

    return register


# What a handler returns for a call that needs no more than others
USUAL = object()


def as_it_is(func: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the CPU tensor's answer."""
    return func(*args, **kwargs)


class EmulatedCuda(TorchFunctionMode):
    """The mode that is active in every thread, below all modes of the script."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle a call of a torch function. This method is short, because it runs hundreds of times per step."""
        own = _handlers.get(func)
        if own is not None:
            if own is as_it_is:
                return func(*args, **kwargs) if kwargs else func(*args)
            answer = own(func, *args, **kwargs) if kwargs else own(func, *args)
            if answer is not USUAL:
                return answer
        if kwargs:
            if generators.own or func in _constructors or not _PLACING_OPTIONS.isdisjoint(kwargs):
                return on_its_device(func, args, dict(kwargs))
            tensors = (*args, *kwargs.values())
        elif generators.own:
            return on_its_device(func, args, {})
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
                other = _tag_in(argument, func, args, kwargs)
            elif isinstance(argument, _Tensor):
                other = argument._composesim_device
            else:
                continue
            if other is not tag and other is not None:  # identity works: small integers are singletons
                if tag is not None:
                    tag = meet(func, args, kwargs)
                    break
                tag = other
        if tag is None and func in _constructors:
            return _construct(func, args, {})
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except NotImplementedError as error:
            raise refusals.explain(error) from None
        if type(result) is _Tensor:
            result._composesim_device = tag if tag is not None else _tag_of_new(tensors)
        elif result is not None and type(result) not in _PLAIN:
            put(result, tag if tag is not None else _tag_of_new(tensors))
        return result


_SEQUENCES = (list, tuple)
# Types of most other arguments, which contain no tensors
_NEITHER = frozenset((int, float, bool, str, type(None), torch.dtype))
# Options that determine the device or placement of the result
_PLACING_OPTIONS = frozenset(("device", "pin_memory", "generator"))
# Called by C++ code, these name the real device of the tensor that they are given
_Operator: Any = torch._ops.OpOverload
_NAMES_REAL_DEVICE = re.compile(r"new_|\w+_like\b")
_PLAIN = (int, bool, float, str, torch.Size, torch.dtype)


def _tag_in(sequence: Any, func: Any, args: tuple[Any, ...], kwargs: Any) -> int | None:
    tag = None
    for argument in sequence:
        if isinstance(argument, _Tensor):
            other = argument._composesim_device
            if other is not tag and other is not None:
                if tag is not None:
                    return meet(func, args, kwargs)
                tag = other
    return tag


def _tag_of_new(args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> int | None:
    """Return the tag of a result that no argument determines: CPU without tensor arguments, None if they have no tags."""
    return CPU if next(tensors_in(args, kwargs), None) is None else None


def on_its_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that computes on the device of its arguments, or on that of an option."""
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
    """Record that the result is pinned; only CPU memory can be."""
    result = on_its_device(func, args, {**kwargs, "pin_memory": False})
    if isinstance(result, _Tensor):
        if tag_of(result) != CPU:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        setattr(result, PINNED, True)
    return result


def _construct(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that takes `device`: a constructor, or one such as zeros_like."""
    device = kwargs.get("device")
    if device is None:
        source = next(tensors_in(args), None)
        if source is not None and func in (torch.as_tensor, torch.asarray):
            return _at(func, args, kwargs, tag_of(source))
        device = default_device()
        if device is None:  # other modes of the script may still choose a device
            with generators.drawing(func, CPU, kwargs):
                return put(func(*args, **kwargs), CPU)
    tag = devices.index_of(device)
    if tag == CPU and isinstance(func, _Operator) and _NAMES_REAL_DEVICE.match(func.__name__):
        source = next(tensors_in(args), None)
        tag = CPU if source is None else tag_of(source)
    if tag == CPU:
        if str(device).startswith("cpu"):
            with generators.drawing(func, CPU, kwargs):
                return put(func(*args, **kwargs), CPU)
        return func(*args, **kwargs)  # meta and other real devices
    return _at(func, args, kwargs, tag)


def _at(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tag: int) -> Any:
    generators.check(func, kwargs, tag)
    source: Any = next(tensors_in(args), None)
    if tag != CPU:
        kwargs["device"] = "cpu"
    with generators.drawing(func, tag, kwargs):
        result = func(*args, **kwargs)
    if result is source and source._composesim_device != tag:
        result = result.clone()  # as_tensor(a, device="cuda") copies a CPU tensor
    return put(result, tag)


def default_device() -> Any:
    """Return the device of `torch.set_default_device` or `with torch.device(…)`, or None."""
    from torch.utils import _device

    return _device.CURRENT_DEVICE


def _order_default_device_mode() -> None:
    """Let torch's own mode for a default device name CUDA only in calls that our mode handles afterwards.

    `with torch.device("cuda"):` puts that mode before ours. torch.set_default_device puts it after ours, where
    everything is on the CPU; `_construct` then asks for the default device.
    """
    from torch.utils._device import DeviceContext

    @wrap(DeviceContext, "__torch_function__")
    def answer(original: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device.type == "cuda":
            kwargs = kwargs or {}
            if func in _constructors and kwargs.get("device") is None and is_on_here():
                kwargs = {**kwargs, "device": self.device}
            return func(*args, **kwargs)
        return original(self, func, types, args, kwargs)


def is_on_here() -> bool:
    """Return whether the mode is active, as in a script, or whether this code runs below a call that the mode handles."""
    return any(isinstance(mode, EmulatedCuda) for mode in _get_current_function_mode_stack())


def paused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, run without the mode, on the CPU tensors as they are."""

    @functools.wraps(function)
    def without_mode(*arguments: Any, **options: Any) -> Any:
        with _torch._C.DisableTorchFunction():
            return function(*arguments, **options)

    return without_mode


def resumed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, run with the mode."""

    @functools.wraps(function)
    def with_mode(*arguments: Any, **options: Any) -> Any:
        with _torch._C._EnableTorchFunction():
            if is_on_here():
                return function(*arguments, **options)
            with EmulatedCuda():
                return function(*arguments, **options)

    return with_mode


def _call_mode_directly() -> None:
    """Speed up the calls of torch's Python functions.

    They reach the mode through torch's handle_torch_function, which supports several modes and classes and takes as
    long as a small operation. If ours is the only mode, call it directly.
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
    """Enable the mode in what the script runs during a backward pass: functions, hooks, and recomputed forwards.

    `tensor.backward()` is a call that the mode handles, so it is disabled within. All backward passes use one function.
    """
    run = resumed(_torch.autograd.graph._engine_run_backward)
    _torch.autograd.graph._engine_run_backward = _torch.autograd._engine_run_backward = run


def _resume_in_saved_tensors_hooks() -> None:
    """Enable the mode in hooks on saved tensors, with which checkpointing compares devices.

    torch calls these hooks within an operation that the mode handles, where it is disabled.
    """

    @wrap(_torch.autograd.graph.saved_tensors_hooks, "__init__")
    def init(original: Any, self: Any, pack_hook: Any, unpack_hook: Any) -> None:
        original(self, resumed(pack_hook), resumed(unpack_hook))


def install() -> None:
    """Enable the mode in this thread."""
    _resume_in_backward()
    _resume_in_saved_tensors_hooks()
    _call_mode_directly()
    _order_default_device_mode()
    global _constructors
    from torch.utils._device import _device_constructors

    _constructors = frozenset(_device_constructors())
    mode: Any = EmulatedCuda()
    mode.__enter__()
