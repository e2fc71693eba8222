"""Tag each tensor with the emulated device that it is on, and keep the tags out of saved files.

Tags are small integers (devices.py), stored as attributes of the Python object, which lives as long as the tensor. A
tensor that torch's C++ code made while no mode was active, such as a gradient in a hook, has no tag: it can be combined
with any device, and counts as on the current device once CUDA is in use.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from . import devices
from .devices import CPU

TAG = "_composesim_device"
PINNED = "_composesim_pinned"

_torch: Any = torch
_Tensor: Any = torch.Tensor


def install() -> None:
    """Let every tensor have a tag."""
    setattr(torch.Tensor, TAG, None)  # the default for tensors without a tag; faster than a missing attribute
    setattr(torch.Tensor, PINNED, False)
    _keep_out_of_pickles()
    _follow_subclasses()


def device_of(tensor: Any) -> torch.device | None:
    """Return the emulated device of a tensor; None if it is on a real one, such as the CPU or `meta`."""
    tag = tensor._composesim_device
    if tag is None:
        if not devices.has_begun() or tensor.device.type != "cpu":
            return None
        tag = devices.current()
    return None if tag == CPU else devices.device(tag)


def tag_of(tensor: Any) -> int:
    """Return the tag of a tensor, or the default."""
    tag: int | None = tensor._composesim_device
    if tag is not None:
        return tag
    return devices.current() if devices.has_begun() else CPU


def put(value: Any, tag: int | None) -> Any:
    """Tag all tensors in a value, and return it."""
    if isinstance(value, _Tensor):
        value._composesim_device = tag
    elif isinstance(value, (tuple, list)):
        for each in value:
            put(each, tag)
    elif isinstance(value, dict):
        for each in value.values():
            put(each, tag)
    return value


def _keep_out_of_pickles() -> None:
    """Keep the tags out of pickles.

    A tensor's attributes are saved with the tensor, in a form that older programs and `weights_only` cannot read. torch gets
    them from one function, which has no hook.
    """
    state_of = _torch._utils._get_obj_state

    def _get_obj_state(tensor: Any) -> Any:
        state = state_of(tensor)
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict):
            return (_without_ours(state[0]), state[1])
        return _without_ours(state) if isinstance(state, dict) else state

    _torch._utils._get_obj_state = _get_obj_state


def _without_ours(state: dict[str, Any]) -> dict[str, Any]:
    if isinstance(state, _Attributes) or TAG in state or PINNED in state:
        return {name: value for name, value in state.items() if name not in (TAG, PINNED)}
    return state


class _Attributes(dict[str, Any]):
    """The `__dict__` of a parameter, which shows no tag: libraries write `type(p)(data, **p.__dict__)`.

    Only Python code sees these methods. Attributes are found and set by C code, which uses the dictionary as it is.
    """

    def _shown(self) -> dict[str, Any]:
        return {name: value for name, value in dict.items(self) if name not in (TAG, PINNED)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown())

    def __len__(self) -> int:
        return len(self._shown())

    def __contains__(self, name: object) -> bool:
        return name in self._shown()

    def __eq__(self, other: object) -> bool:
        return self._shown() == (other._shown() if isinstance(other, _Attributes) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._shown())

    def __or__(self, other: Any) -> Any:
        return self._shown() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._shown()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Attributes:
        return _Attributes(copy.deepcopy(dict(dict.items(self)), memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self._shown(),)

    def copy(self) -> dict[str, Any]:
        return self._shown()

    def keys(self) -> Any:
        return self._shown().keys()

    def values(self) -> Any:
        return self._shown().values()

    def items(self) -> Any:
        return self._shown().items()


def _follow_subclasses() -> None:
    """Put a parameter on the device of its data: torch makes it with this static method, which no mode sees."""
    make = _Tensor._make_subclass

    def _make_subclass(*arguments: Any, **options: Any) -> Any:  # Dynamo accepts any signature
        made = make(*arguments, **options)
        data = options["data"] if "data" in options else arguments[1]
        made.__dict__ = _Attributes(made.__dict__)
        made._composesim_device = data._composesim_device
        return made

    _Tensor._make_subclass = staticmethod(_make_subclass)

    make_wrapper = _Tensor._make_wrapper_subclass

    def _make_wrapper_subclass(*arguments: Any, **options: Any) -> Any:
        at = 7  # where jagged tensors, which pass all arguments by position, have the device
        device = arguments[at] if len(arguments) > at else options.get("device")
        if device is None or not devices.is_cuda(device):
            return make_wrapper(*arguments, **options)
        if len(arguments) > at:
            arguments = (*arguments[:at], "cpu", *arguments[at + 1 :])
        else:
            options = {**options, "device": "cpu"}
        return put(make_wrapper(*arguments, **options), devices.index_of(device))

    _Tensor._make_wrapper_subclass = staticmethod(_make_wrapper_subclass)
