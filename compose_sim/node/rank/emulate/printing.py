"""Print tensors on emulated devices as torch does, with the device, which torch omits for the CPU."""

from __future__ import annotations

from typing import Any

import torch

from .tags import device_of
from .tensors import special

_Tensor: Any = torch.Tensor


def _repr(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Add the device to the text that torch makes."""
    text: str = func(*args, **kwargs)
    device = device_of(args[0])
    if device is None or not text.endswith(")") or not isinstance(args[0], _Tensor):
        return text
    behind = max(text.rfind("]"), 0)
    places = [text.find(f"{name}=", behind) for name in ("size", "dtype", "layout", "grad_fn", "requires_grad")]
    first = min((place for place in places if place >= 0), default=None)
    if first is not None:
        return f"{text[:first]}device='{device}', {text[first:]}"
    return f"{text[:-1]}, device='{device}')"


def _format(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if args[0].dim() and device_of(args[0]) is not None:
        return object.__format__(_repr(_Tensor.__repr__, args[:1], {}), *args[1:])
    text: str = func(*args, **kwargs)
    return text


def install() -> None:
    """Register the functions."""
    special[_Tensor.__repr__] = _repr
    special[_Tensor.__format__] = _format
