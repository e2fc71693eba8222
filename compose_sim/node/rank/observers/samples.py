"""Hash samples and data sets, so that equal data have equal numbers on any rank."""

from __future__ import annotations

import ctypes
import dataclasses
import heapq
import sys
import zlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_MAX_ROWS = 1024
_ELEMENTS = 64  # per row, spread over it: enough to tell rows apart
_DEEP = 4
_WIDE = 16  # elements of a list
_MIN_CODES, _MAX_CODES = 3, 20_000
_MAX_INDICES, _LOWEST, _SPREADING = 1 << 18, 16, 2_654_435_761
_MAX_VALUES = 1000  # of a data set, which may hold anything
_MIN_SCALED_ROWS, _MAX_SCALED = 16, 1 << 22  # elements
_SAME_MEAN, _CONSTANT, _FEW = 1e-5, 1e-3, 8  # the last: columns


def rows_of(batch: Any, *, wait: bool = True) -> tuple[tuple[int, ...], int] | None:
    """
    Return a hash of each row of a batch, over everything in the row, and a hash of the rows' shapes.

    Return None if the batch has no rows that we understand, or if they lie on a device and we may not `wait` for it. Hashes of rows
    are only comparable if the shapes are equal.
    """
    tensors: list[Any] = []
    others: list[Any] = []
    _collect(batch, tensors, others, _DEEP)
    if any(tensor.device.type != "cpu" for tensor in tensors) and not wait:
        return None
    counts = {len(each) for each in tensors} or {len(each) for each in others}
    if len(counts) != 1 or not max(counts):
        return None
    count = min(counts.pop(), _MAX_ROWS)
    numbers = [0] * count
    for tensor in tensors:
        _mix_rows(tensor, numbers)
    for values in others:
        if len(values) >= count:
            numbers = [zlib.crc32(repr(value).encode(), number) for value, number in zip(values, numbers)]
    return tuple(numbers), zlib.crc32(repr([tuple(tensor.shape[1:]) for tensor in tensors]).encode())


def _collect(value: Any, tensors: list[Any], others: list[Any], depth: int) -> None:
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        if value.dim() and value.layout == torch.strided and value.device.type != "meta":
            tensors.append(value)
    elif type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
        array = _tensor_of(value)
        if array is not None:
            tensors.append(array)
    elif not depth:
        return
    elif isinstance(value, Mapping):
        for key in value:
            _collect(value[key], tensors, others, depth - 1)
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(each, (str, bytes, int, float)) for each in value):
            others.append(value)
        else:
            for each in value:
                _collect(each, tensors, others, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _collect(vars(value), tensors, others, depth - 1)


def _tensor_of(array: Any) -> Any:
    """Return an array of numbers as a tensor; None if it is another, or has no rows."""
    if not array.ndim or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8 or not array.dtype.isnative:
        return None
    is_plain = array.flags.writeable and min(array.strides) >= 0  # else torch warns, or refuses it
    return sys.modules["torch"].as_tensor(array if is_plain else array.copy())


def _mix_rows(tensor: Any, numbers: list[int]) -> None:
    """Mix some elements of each row of a tensor into that row's hash."""
    count = len(numbers)
    tensor = tensor.detach()[:count]
    is_text = tensor.dim() == 2 and not tensor.is_floating_point()
    flat = tensor.reshape(count, -1)
    columns = flat.shape[1]
    if columns > _ELEMENTS:
        # Tokens are padded to the longest row of the batch: only the beginning is the same in every batch.
        flat = flat[:, :_ELEMENTS] if is_text else flat[:, :: columns // _ELEMENTS]
    data = bytes_of(flat)
    width = len(data) // count
    size = flat.element_size()
    for number in range(count):
        row = data[number * width : (number + 1) * width]
        numbers[number] = zlib.crc32(row.rstrip(row[-size:]) if is_text else row, numbers[number])


def bytes_of(tensor: Any) -> bytes:
    """Return a tensor's elements as they lie in memory, without NumPy, which torch does not require."""
    tensor = tensor.detach().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def fingerprint(data_set: Any) -> int:
    """Return a hash of a data set's own data: if it is equal on two ranks, they very probably have the same samples."""
    return zlib.crc32(_describe(data_set, _DEEP, [_MAX_VALUES]).encode())


def subset_in(data_set: Any) -> tuple[int, ...]:
    """Return, of torch's Subset, the fingerprint of the whole data set, a hash of the indices, and the lowest hashes of an index.

    Subsets that overlap have some of these in common. No code of the script runs.
    """
    if type(data_set) is not sys.modules["torch"].utils.data.Subset:
        return ()
    held = vars(data_set)
    indices: Any = held.get("indices")
    if (
        type(indices) not in (list, tuple)
        or len(indices) > _MAX_INDICES
        or any(type(each) is not int for each in indices)
    ):
        return ()
    lowest = heapq.nsmallest(_LOWEST, (each * _SPREADING & 0xFFFFFFFF for each in indices))
    return fingerprint(held.get("dataset")), zlib.crc32(repr(indices).encode()), *lowest


def codes_in(data_set: Any, depth: int = 3) -> list[tuple[str, int, int]]:
    """Return the dicts of a data set, or of one that it wraps, that number names from 0: attribute, hash of the names, of the dict."""
    held = getattr(data_set, "__dict__", {})
    found = [
        (name, *hashes_of_codes(value))
        for name, value in list(held.items())[:_WIDE]
        if has_codes(value, _MIN_CODES) and sorted(value.values()) == list(range(len(value)))
    ]
    inner = held.get("dataset")
    return found + (codes_in(inner, depth - 1) if depth and inner is not None else [])


def has_codes(value: Any, least: int) -> bool:
    """Return whether this is a dict that gives each of `least` names or more a whole number."""
    is_dict = type(value) is dict and least <= len(value) <= _MAX_CODES
    return is_dict and all(type(name) is str and type(code) is int for name, code in value.items())


def hashes_of_codes(codes: Mapping[str, int]) -> tuple[int, int]:
    """Return a hash of the names in a dict that numbers them, and one of the whole dict; its order does not matter."""
    names = sorted(codes)
    return zlib.crc32(repr(names).encode()), zlib.crc32(repr([codes[each] for each in names]).encode())


def scaled_by_itself(value: Any, depth: int = 2) -> float | None:
    """
    Return the sum of the third powers if each column of a tensor or array has a mean of 0 and a deviation of 1, else None.

    `value` may be a data set that holds it. The order of the rows does not matter.
    """
    torch: Any = sys.modules["torch"]
    if type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
        value = _tensor_of(value)
    if type(value) is torch.Tensor:
        if not (value.is_floating_point() and value.dim() > 1 and value.layout == torch.strided):
            return None
        if len(value) < _MIN_SCALED_ROWS or not 0 < value.numel() <= _MAX_SCALED or value.device.type == "meta":
            return None
        rows = value.detach().flatten(1)
        return float((rows.double() ** 3).sum()) if _is_scaled(rows[:, :_FEW]) and _is_scaled(rows) else None
    found = (scaled_by_itself(each, depth - 1) for each in (_held(value)[:_WIDE] if depth > 0 else ()))
    return next((each for each in found if each is not None), None)


def _is_scaled(rows: Any) -> bool:
    torch: Any = sys.modules["torch"]
    spread, mean = torch.std_mean(rows.double(), dim=0)
    off = torch.maximum(mean.abs() / _SAME_MEAN, (spread - 1).abs() * len(rows))  # with or without Bessel's correction
    off = torch.where(spread > _CONSTANT, off, 0 * off)
    return bool((spread > _CONSTANT).any() and off.max() <= 1)


def generators_in(value: Any, depth: int = _DEEP - 1) -> list[Any]:
    """Return the random generators that an object holds, directly or in what it holds."""
    kind = type(value)
    if (kind.__module__, kind.__name__) in (("torch._C", "Generator"), ("random", "Random")):
        return [value]
    if kind.__name__ == "Generator" and kind.__module__.startswith("numpy"):
        return [value]
    held = _held(value)
    return [found for each in held[:_WIDE] for found in generators_in(each, depth - 1)] if depth else []


def _held(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value[:_WIDE]) if type(value) in (list, tuple) else []
    if type(value) is dict:
        return list(value.values())
    if isinstance(value, (type, str)) or type(value).__module__ in ("builtins", "torch", "numpy"):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _describe(value: Any, depth: int, left: list[int]) -> str:
    """Describe what an object holds, without running any code of the object."""
    kind = type(value)
    torch = sys.modules["torch"]
    if value is None or isinstance(value, (bool, int, float, str, bytes, range, PurePath)):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"tensor {tuple(value.shape)} {_sampled(value)}"
    if kind.__module__ == "numpy" and hasattr(value, "__array_interface__"):
        few = value.reshape(-1)[:: max(1, value.size // _ELEMENTS)]
        return f"array {value.shape} {zlib.crc32(repr(few.tolist()).encode())}"
    left[0] -= 1
    if not depth or left[0] < 0:
        return kind.__name__
    if kind in (list, tuple):
        few = value[:: max(1, len(value) // _WIDE)]
        return f"{len(value)} of [{','.join(_describe(each, depth - 1, left) for each in few)}]"
    if kind is dict:
        few = list(value.items())[: 4 * _WIDE]
        return f"{len(value)} in {{{','.join(f'{key!r}:{_describe(each, depth - 1, left)}' for key, each in few)}}}"
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or isinstance(value, type) or kind.__name__ == "function":
        return getattr(value, "__qualname__", kind.__name__)
    return kind.__name__ + _describe(dict(attributes), depth - 1, left)


def _sampled(tensor: Any) -> int:
    if tensor.device.type != "cpu" or tensor.layout != sys.modules["torch"].strided:
        return 0
    flat = tensor.detach().reshape(-1)
    return zlib.crc32(bytes_of(flat[:: max(1, flat.numel() // _ELEMENTS)]))
