"""In what words does CUDA refuse tensors on two devices? In those of the kernel that looks at its arguments, one after the other.

The emulated operation is Python's; a GPU build of torch checks in the kernel that it leads to. Of the operations in which people
meet the error most, the table has that kernel with its arguments in its own order. Others have the words of element-wise ones.
"""

from __future__ import annotations

from typing import Any

import torch

from .devices import CPU

_Tensor: Any = torch.Tensor
_ONE_BY_ONE = (
    2,
    8,
)  # the first torch that names the argument and its device; older ones name two devices and the argument
# By the operation's name: the kernel, and the name and the position of each of its arguments.
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


def words(name: str, arguments: tuple[Any, ...], one: int, other: int) -> str:
    """What torch says of these arguments, which are on devices with the tags `one` and `other`."""
    begin = "Expected all tensors to be on the same device, but "
    kernel, looked_at = _looked_at(name, arguments)
    common = looked_at[0][1]._composesim_device if looked_at else None
    wrong = next((each for each in looked_at if each[1]._composesim_device not in (None, common)), None)
    first, second = sorted((one, other), key=lambda tag: (tag == CPU, tag))
    if wrong is None:
        return f"{begin}found at least two devices, {name_of(first)} and {name_of(second)}!"
    argument, tensor = wrong
    its = name_of(tensor._composesim_device)
    if _version() < _ONE_BY_ONE:
        told = (
            f"found at least two devices, {its} and {name_of(common)}! (when checking argument for argument {argument}"
        )
    else:
        told = f"got {argument} is on {its}, different from other tensors on {name_of(common)} (when checking argument"
    return f"{begin}{told} in method wrapper_CUDA_{kernel})"


def name_of(tag: int | None) -> str:
    """`cpu`, or `cuda:1`."""
    return "cpu" if tag in (CPU, None) else f"cuda:{tag}"


def _looked_at(name: str, arguments: tuple[Any, ...]) -> tuple[str, list[tuple[str, Any]]]:
    """The kernel, and its arguments that are tensors, in the order in which it looks at them."""
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
