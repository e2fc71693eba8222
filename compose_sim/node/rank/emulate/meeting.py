"""Check whether tensors may be combined in one operation, and where the result is, with CUDA's rules and errors.

The emulated operation is a Python function, but in a CUDA build of torch the kernel that it calls checks the devices. For the
operations in which tensors on different devices are most common, a table lists the kernel and the arguments, in order. Other
operations use the message of element-wise ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from .devices import CPU

_Tensor: Any = torch.Tensor

# The first argument determines where the result is; the other arguments may be on other devices.
_FOLLOWS_TEXT = (
    "copy_ _foreach_copy_ __getitem__ __setitem__ index index_put index_put_ _index_put_impl_ set_ view_as reshape_as expand_as "
    "resize_as_ is_same_size is_set_to backward register_hook pack_padded_sequence _pack_padded_sequence ctc_loss _ctc_loss "
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like tensor_split result_type can_cast as_subclass "
    "__deepcopy__ __reduce_ex__ __set__ type_as _has_compatible_shallow_copy_type _nested_view_from_jagged broadcast_tensors"
)
_FOLLOWS_THE_FIRST = frozenset(_FOLLOWS_TEXT.split())
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CONVOLUTIONS = tuple(f"conv{transposed}{dimensions}d" for transposed in ("", "_transpose") for dimensions in (1, 2, 3))
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


def tensors_in(arguments: Iterable[Any], options: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """Yield all tensors in the arguments of a call, also those in lists."""
    for argument in (*arguments, *(options or {}).values()):
        if isinstance(argument, _Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from tensors_in(argument)


def meet(function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any] | None = None) -> int | None:
    """Return the tag of the result, or None if no argument determines it; raise CUDA's error if the tensors may not be combined."""
    name = getattr(function, "__name__", "")
    if name in _FOLLOWS_THE_FIRST:
        if name in ("__getitem__", "index"):
            _check_indices(arguments)
        first = next(tensors_in(arguments), None)
        return None if first is None else first._composesim_device
    if name in _RECURRENT and len(arguments) > 1 and getattr(arguments[1], "dtype", None) is torch.int64:
        arguments = (arguments[0], *arguments[2:])  # the batch sizes of a packed sequence are always on the CPU
    place: int | None = None
    with_dimensions: int | None = None
    for tensor in tensors_in(arguments, options):
        tag = tensor._composesim_device
        if tag is None:
            continue
        if tag == CPU:
            if tensor.dim() == 0:  # a scalar may be combined with any device
                place = CPU if place is None else place
                continue
        elif place is not None and place not in (tag, CPU):
            raise _two_devices(place, tag, name, arguments)
        if with_dimensions is not None and with_dimensions != tag:
            raise _two_devices(with_dimensions, tag, name, arguments)
        with_dimensions = tag
        place = tag
    return place


def _check_indices(arguments: tuple[Any, ...]) -> None:
    place = arguments[0]._composesim_device
    for index in tensors_in(arguments[1:]):
        tag = index._composesim_device
        if place is not None and tag not in (None, CPU, place) and index.dim():
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({_name_of(place)})"
            )


def _two_devices(one: int, other: int, name: str, arguments: tuple[Any, ...]) -> RuntimeError:
    return RuntimeError(_layer_message(name, *arguments[:3]) or _kernel_message(name, arguments, one, other))


def _layer_message(name: str, input: Any = None, second: Any = None, third: Any = None) -> str:
    """Return the error of convolutions and recurrent layers for an input on another device than the weights, or ""."""
    if name in _RECURRENT and isinstance(input, _Tensor):
        weight = next(tensors_in(third if isinstance(third, (list, tuple)) else ()), None)
        if weight is not None and (input._composesim_device == CPU) != (weight._composesim_device == CPU):
            return (
                "Input and parameter tensors are not at the same device, found input tensor at "
                f"{_name_of(input._composesim_device)} and parameter tensor at {_name_of(weight._composesim_device)}"
            )
    if name in _CONVOLUTIONS and isinstance(input, _Tensor) and isinstance(second, _Tensor):
        kinds = [f"torch.{'' if each._composesim_device == CPU else 'cuda.'}{_kind(each)}" for each in (input, second)]
        if kinds[0] != kinds[1]:
            return f"Input type ({kinds[0]}) and weight type ({kinds[1]}) should be the same"
    return ""


def _kind(tensor: Any) -> str:
    with torch._C.DisableTorchFunction():
        return str(tensor.type()).rpartition(".")[2]


def _kernel_message(name: str, arguments: tuple[Any, ...], one: int, other: int) -> str:
    """Return torch's message for these arguments, which are on devices with the tags `one` and `other`."""
    begin = "Expected all tensors to be on the same device, but "
    kernel, checked = _checked_arguments(name, arguments)
    common = checked[0][1]._composesim_device if checked else None
    wrong = next((each for each in checked if each[1]._composesim_device not in (None, common)), None)
    first, second = sorted((one, other), key=lambda tag: (tag == CPU, tag))
    if wrong is None:
        return f"{begin}found at least two devices, {_name_of(first)} and {_name_of(second)}!"
    argument, tensor = wrong
    place = _name_of(tensor._composesim_device)
    if _version() < _ONE_BY_ONE:
        detail = f"found at least two devices, {place} and {_name_of(common)}! (when checking argument for argument {argument}"
    else:
        detail = (
            f"got {argument} is on {place}, different from other tensors on {_name_of(common)} (when checking argument"
        )
    return f"{begin}{detail} in method wrapper_CUDA_{kernel})"


def _name_of(tag: int | None) -> str:
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
