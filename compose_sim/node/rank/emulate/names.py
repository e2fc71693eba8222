"""Replace classes whose constructors no mode sees, such as `torch.device` and `torch.cuda.FloatTensor`."""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import devices
from .devices import CPU
from .tags import put

_torch: Any = torch
_LEGACY = tuple(
    f"{kind}Tensor" for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
)


class _DeviceClass(type):
    """The replacement for `torch.device`: the real class does not know which device a number means."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments and isinstance(arguments[0], int) and not isinstance(arguments[0], bool):
            arguments = (f"cuda:{arguments[0]}", *arguments[1:])
        return devices.real_device(*arguments, **options)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, devices.real_device)

    def __subclasscheck__(cls, other: Any) -> bool:
        return other is cls or issubclass(other, devices.real_device)


class _LegacyClass(type):
    """The replacement for `torch.cuda.FloatTensor`: the CPU's class of that name, whose tensors are on the current device."""

    real: Any
    on_cuda: bool

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        made = cls.real(*arguments, **options)
        return put(made, devices.index_of(None) if cls.on_cuda else CPU)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.real) and bool(value.is_cuda) == cls.on_cuda

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "real"), name)


def install() -> None:
    """Replace the names in torch by classes, because scripts use isinstance."""
    # Only names that scripts call: the C constructors have no hooks, and that of torch.device knows no accelerator
    # here.
    _torch.device = _DeviceClass("device", (), {"__module__": "torch", "__qualname__": "device"})
    for name in _LEGACY:
        real = getattr(torch, name)
        for module, on_cuda in ((_torch, False), (_torch.cuda, True)):
            body = {"__module__": module.__name__, "real": real, "on_cuda": on_cuda}
            setattr(module, name, _LegacyClass(name, (), body))
    _torch.Tensor.__init__ = _tag_new
    for name in ("from_numpy", "frombuffer", "from_file"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    nested: Any = _torch._C._nested
    nested.nested_tensor = _on_its_device(nested.nested_tensor)


def _tag_new(self: Any, *arguments: Any, **options: Any) -> None:
    """Put `torch.Tensor([1.0])` on the CPU, and what is made from a tensor on the tensor's device."""
    if self._composesim_device is None and type(self) is _torch.Tensor:
        source: Any = arguments[0] if arguments and isinstance(arguments[0], _torch.Tensor) else None
        self._composesim_device = CPU if source is None else source._composesim_device


def _on_its_device(function: Any) -> Any:
    @functools.wraps(function)
    def on_its_device(*arguments: Any, device: Any = None, **options: Any) -> Any:
        tag = CPU if device is None else devices.index_of(device)
        return put(function(*arguments, **options), tag)

    return on_its_device


def _on_cpu(function: Any) -> Any:
    @functools.wraps(function)
    def on_the_cpu(*arguments: Any, **options: Any) -> Any:
        return put(function(*arguments, **options), CPU)

    return on_the_cpu
