"""Compute products of half-precision tensors as a GPU does: summed in float32, and rounded once.

Without instructions for a half type, a CPU needs 10 to 100 times as long for them as for float32. Products with `out_dtype`, which are
not rounded, exist only for CUDA.
"""

from __future__ import annotations

from typing import Any

import torch

from .meeting import tensors_in
from .tensors import USUAL, for_call, on_its_device

_Tensor: Any = torch.Tensor
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MATRICES = ("mm", "addmm", "bmm", "baddbmm")
# What refuses the same matrices; torch 2.13 cannot compute the shape of baddbmm
_CHECK: dict[Any, Any] = {torch.mm: torch.mm, torch.addmm: torch.mm, torch.bmm: torch.bmm, torch.baddbmm: torch.bmm}
_PRODUCTS = (
    *(getattr(torch, f"conv{kind}{number}d") for kind in ("", "_transpose") for number in (1, 2, 3)),
    *(torch.matmul, _Tensor.matmul, _Tensor.__matmul__, _Tensor.__rmatmul__, torch.einsum),
    *(getattr(_Tensor, name) for name in _MATRICES),
    *(torch.nn.functional.linear, torch.nn.functional.scaled_dot_product_attention),
)
_HALF: frozenset[torch.dtype] = frozenset()


def compute_as_tensor_cores() -> None:
    """Handle products of the half types that this CPU computes element by element: bfloat16, too, without AVX-512."""
    global _HALF
    is_slow = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    _HALF = frozenset((torch.float16, torch.bfloat16) if is_slow else (torch.float16,))


@for_call(*_PRODUCTS)
def _product(func: Any, /, *args: Any, **kwargs: Any) -> Any:
    cast: torch.dtype | None = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    if cast is None and args and type(args[0]) in _PLAIN and args[0].dtype not in _HALF:
        return USUAL  # most calls: the handler must cost little
    half = _half_of(args, kwargs, cast)
    if half is None or kwargs.get("out") is not None:
        return USUAL

    def rounded(*arguments: Any, **options: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            wide = func(*_widened(arguments, half), **dict(zip(options, _widened(options.values(), half))))
        return wide.to(half)

    rounded.__name__ = func.__name__  # by which errors about devices name the operation
    return on_its_device(rounded, args, kwargs)


def _half_of(args: tuple[Any, ...], kwargs: dict[str, Any], cast: torch.dtype | None) -> torch.dtype | None:
    """Return the half type of all arguments, after autocast; None if they have another, or more than one."""
    found: torch.dtype | None = None
    for each in tensors_in(args, kwargs):
        if type(each) not in _PLAIN:
            return None
        if each.is_floating_point():
            dtype: torch.dtype = each.dtype if cast is None or each.dtype == torch.float64 else cast
            if dtype not in _HALF or found not in (None, dtype):
                return None
            found = dtype
    return found


def _widened(values: Any, half: torch.dtype) -> list[Any]:
    """Return the values with each tensor of real numbers rounded to this type and converted to float32."""
    found = []
    for value in values:
        if isinstance(value, _Tensor) and value.is_floating_point():
            value = value.to(half).float()
        elif isinstance(value, (list, tuple)) and any(isinstance(each, _Tensor) for each in value):
            value = _widened(value, half)
        found.append(value)
    return found


class _NotDerived(torch.autograd.Function):
    """A result without a derivative, as torch gives it to products with `out_dtype`."""

    @staticmethod
    def forward(context: Any, result: Any, name: str, *inputs: Any) -> Any:
        context.name = name
        return result

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"derivative for aten::{context.name} is not implemented")


_OPERATORS = [getattr(getattr(torch.ops.aten, name), kind) for name in _MATRICES for kind in ("dtype", "dtype_out")]


@for_call(*(getattr(torch, name) for name in _MATRICES), *_OPERATORS)
def _matrix_product(func: Any, /, *args: Any, **kwargs: Any) -> Any:
    options = dict(kwargs)
    wanted = options.pop("out_dtype", args[-1] if args and isinstance(args[-1], torch.dtype) else None)
    if wanted is None:
        return _product(func, *args, **kwargs)
    inputs = [each for each in args if not isinstance(each, torch.dtype)]
    func = getattr(torch, func.__name__.partition(".")[0])  # of an operator
    out = options.pop("out", None)

    def exact(*arguments: Any, **rest: Any) -> Any:
        shapes = [each.detach().to("meta") for each in arguments[-2:]]
        _CHECK[func](*shapes, out_dtype=wanted)  # raises torch's errors
        with torch.no_grad():
            wide = [each.to(_sum_type(wanted)) if isinstance(each, _Tensor) else each for each in arguments]
            result = func(*wide, **rest).to(wanted)
        if out is not None:
            return out.copy_(result)
        apply: Any = _NotDerived.apply  # torch does not annotate it
        return apply(result, func.__name__, *tensors_in(arguments, rest))

    exact.__name__ = func.__name__
    return on_its_device(exact, tuple(inputs), options)


def _sum_type(wanted: torch.dtype) -> torch.dtype:
    return torch.float32 if wanted in (torch.float16, torch.bfloat16) else wanted
