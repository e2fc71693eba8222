"""Tag each tensor with the emulated device that it is on, and keep the tags out of saved files.

Tags are small integers (devices.py), stored as attributes of the Python object, which lives as long as the tensor. A
tensor that torch's C++ code made while no mode was active, such as a gradient in a hook, has no tag: it can be combined
with any device, and counts as on the current device once CUDA is in use.
"""

from __future__ import annotations

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
    if TAG in state or PINNED in state:
        return {name: value for name, value in state.items() if name not in (TAG, PINNED)}
    return state


def _follow_subclasses() -> None:
    """Put a parameter on the device of its data: torch makes it with this static method, which no mode sees."""
    make = _Tensor._make_subclass

    def _make_subclass(*arguments: Any, **options: Any) -> Any:  # Dynamo accepts any signature
        made = make(*arguments, **options)
        data = options["data"] if "data" in options else arguments[1]
        made._composesim_device = data._composesim_device
        return made

    _Tensor._make_subclass = staticmethod(_make_subclass)

    make_wrapper = _Tensor._make_wrapper_subclass

    def _make_wrapper_subclass(*arguments: Any, **options: Any) -> Any:
        device = options.get("device")
        if device is None or not devices.is_cuda(device):
            return make_wrapper(*arguments, **options)
        tag = devices.index_of(device)
        return put(make_wrapper(*arguments, **{**options, "device": "cpu"}), tag)

    _Tensor._make_wrapper_subclass = staticmethod(_make_wrapper_subclass)
