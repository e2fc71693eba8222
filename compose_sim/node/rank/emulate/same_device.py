"""Write CUDA's error for tensors on different devices, raised by the first kernel that checks the arguments.

The emulated operation is a Python function, but in a CUDA build of torch the kernel that it calls checks the devices.
For the operations in which this error is most common, the table lists the kernel and the arguments, in order. Other
operations use the message of element-wise ones.
"""

from __future__ import annotations

from typing import Any

import torch

from .devices import CPU

_Tensor: Any = torch.Tensor
# The first torch whose message names the argument and the device; older ones name two devices and the argument
_ONE_BY_ONE = (2, 8)
# Operation -> kernel, and the name and position of each argument.
_KERNELS: dict[str, tuple[str, tuple[tuple[str, int], ...]]] = {
    "mm": ("mm", (("self", 0), ("mat2", 1))),
    "bmm": ("bmm", (("self", 0), ("mat2", 1))),
    "addmm": ("addmm", (("self", 0), ("mat1", 1), ("mat2", 2))),
    "embedding": ("_index_select", (("self", 1), ("index", 0))),
    "index_select": ("_index_select", (("self", 0), ("index", 2))),
    "layer_norm": ("_native_layer_norm", (("input", 0), ("weight", 2), ("bias", 3))),
    "nll_loss": ("nll_loss_forward", (("self", 0), ("target", 1))),
    "cross_entropy": ("nll_loss_forward", (("self", 0), ("target", 1))),
}


def message(name: str, arguments: tuple[Any, ...], one: int, other: int) -> str:
    """Return torch's message for these arguments, which are on devices with the tags `one` and `other`."""
    begin = "Expected all tensors to be on the same device, but "
    kernel, checked = _checked_arguments(name, arguments)
    common = checked[0][1]._composesim_device if checked else None
    wrong = next((each for each in checked if each[1]._composesim_device not in (None, common)), None)
    first, second = sorted((one, other), key=lambda tag: (tag == CPU, tag))
    if wrong is None:
        return f"{begin}found at least two devices, {name_of(first)} and {name_of(second)}!"
    argument, tensor = wrong
    place = name_of(tensor._composesim_device)
    if _version() < _ONE_BY_ONE:
        detail = f"found at least two devices, {place} and {name_of(common)}! (when checking argument for argument {argument}"
    else:
        detail = (
            f"got {argument} is on {place}, different from other tensors on {name_of(common)} (when checking argument"
        )
    return f"{begin}{detail} in method wrapper_CUDA_{kernel})"


def name_of(tag: int | None) -> str:
    """Return `cpu`, or `cuda:1` etc."""
    return "cpu" if tag in (CPU, None) else f"cuda:{tag}"


def _checked_arguments(name: str, arguments: tuple[Any, ...]) -> tuple[str, list[tuple[str, Any]]]:
    """Return the kernel and the tensor arguments, in the order in which the kernel checks them."""
    if name in ("cat", "concat", "stack") and arguments and isinstance(arguments[0], (list, tuple)):
        return "cat", [("tensors", each) for each in arguments[0]]
    if name == "linear":
        has_bias = len(arguments) > 2 and isinstance(arguments[2], _Tensor)
        name, arguments = ("addmm", (arguments[2], *arguments[:2])) if has_bias else ("mm", arguments)
    elif name in ("matmul", "__matmul__"):
        name = "bmm" if max(each.dim() for each in arguments[:2]) > 2 else "mm"
    kernel, positions = _KERNELS.get(name, ("", ()))
    chosen = [(argument, arguments[at]) for argument, at in positions if at < len(arguments)]
    return kernel, [(argument, each) for argument, each in chosen if isinstance(each, _Tensor)]


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
