"""Emulate the functions that move a tensor, or return its device."""

from __future__ import annotations

from typing import Any

import torch

from .. import context
from . import devices
from .devices import CPU
from .meeting import tensors_in
from .tags import PINNED, device_of, put, tag_of
from .tensors import as_it_is, special

_Tensor: Any = torch.Tensor
_real_device = torch.device


def _to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Emulate tensor.to(device | dtype | other, …)."""
    self, *rest = args
    device = kwargs.get("device")
    first = rest[0] if rest else kwargs.get("other")
    if isinstance(first, _Tensor):
        tag, dtype = tag_of(first), first.dtype
        rest, kwargs = [dtype, *rest[1:]], {name: value for name, value in kwargs.items() if name != "other"}
        if first.device.type != "cpu":
            return func(*args, **kwargs)
        return _moved(func, self, tag, rest, kwargs)
    if rest and (first is None or isinstance(first, (str, int, _real_device))):
        device = first
        rest = rest[1:]
        if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            kwargs = {**kwargs, "dtype": rest[0]}
            rest = rest[1:]
        kwargs.update(zip(("non_blocking", "copy"), rest))
        rest = []
    if device is None:
        return put(func(self, *rest, **kwargs), self._composesim_device)
    kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    tag = devices.index_of(device)
    if tag == CPU and _real_device(device).type != "cpu":
        return func(self, device, *rest, **kwargs)
    return _moved(func, self, tag, rest, kwargs)


def _moved(func: Any, tensor: Any, tag: int, rest: Any, kwargs: dict[str, Any]) -> Any:
    """Return a copy of the tensor on another device; on the same device, the tensor itself, or a copy if the type changes."""
    if tensor.device.type != "cpu":  # nothing can be copied from `meta`, as torch reports
        return func(tensor, "cpu", *rest, **kwargs)
    if tensor._composesim_device != tag and (tag != CPU or tag_of(tensor) != CPU):
        kwargs = {**{name: value for name, value in kwargs.items() if name != "copy"}, "copy": True}
    kwargs.pop("non_blocking", None)
    moved = put(func(tensor, *rest, **kwargs) if rest or kwargs else tensor, tag)
    put(getattr(moved, "_local_tensor", None), tag)  # of a DTensor
    return moved


def _cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    tag = devices.index_of(device)
    if tag == CPU:
        raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
    return _moved(_Tensor.to, args[0], tag, [], {})


def _cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _moved(_Tensor.to, args[0], CPU, [], {})


def _device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return device_of(args[0]) or func(*args)


def _is_cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return device_of(args[0]) is not None or bool(func(*args))


def _is_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return device_of(args[0]) is None and bool(func(*args))


def _get_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    device = device_of(args[0] if args else kwargs["input"])
    return int(func(*args, **kwargs)) if device is None else int(device.index)


def _numpy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = device_of(args[0])
    if device is not None and not (kwargs.get("force") or args[1:] == (True,)):
        raise TypeError(
            f"can't convert {device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return func(*args, **kwargs)


def _dlpack_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = device_of(args[0])
    if device is None:
        return func(*args, **kwargs)
    where = context.where(context.place())
    raise BufferError(
        f"composesim: a tensor on an emulated {device} cannot be given to another library{where}: use .cpu() first"
    )


def _type(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """
    Emulate tensor.type(), which returns a class name, and tensor.type("torch.cuda.FloatTensor"), which moves the
    tensor.
    """
    self = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    device = device_of(self)
    if wanted is None:
        name: str = func(self)
        return name if device is None else name.replace("torch.", "torch.cuda.", 1)
    if isinstance(wanted, torch.dtype):
        return put(func(*args, **kwargs), self._composesim_device)
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    plain = name.replace("torch.cuda.", "torch.", 1)
    tag = CPU
    if plain != name:
        tag = devices.current() if device is None else int(device.index)
        devices.begin()
    return _moved(_Tensor.to, self, tag, [getattr(torch, plain.rpartition(".")[2]).dtype], {})


def _type_as(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return _moved(_Tensor.to, args[0], tag_of(other), [other.dtype], {})


def _pin_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    self = args[0]
    device = device_of(self)
    if device is not None:
        raise RuntimeError(
            f"cannot pin '{self.type().replace('torch.', 'torch.cuda.', 1)}' only dense CPU tensors can be pinned"
        )
    if getattr(self, PINNED):
        return self
    pinned = put(self.clone(), CPU)
    setattr(pinned, PINNED, True)
    return pinned


def _is_pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(getattr(args[0], PINNED))


def _set_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Move the tensor to the device of the other one with `tensor.data = other`, which is how modules are moved."""
    self, other = args[:2]
    func(*args)
    self._composesim_device = other._composesim_device


def _get_same(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put `tensor.grad` and `tensor.data` on the tensor's device."""
    value = func(*args)
    if value is not None and value._composesim_device is None:
        value._composesim_device = args[0]._composesim_device
    return value


def _set_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    self, gradient = args[:2]
    if isinstance(gradient, _Tensor):
        mine, its = self._composesim_device, gradient._composesim_device
        if None not in (mine, its) and mine != its:
            raise RuntimeError(
                "attempting to assign a gradient with device type '{}' to a tensor with device type '{}'. "
                "Please ensure that the gradient and the tensor are on the same device".format(
                    "cpu" if its == CPU else "cuda", "cpu" if mine == CPU else "cuda"
                )
            )
    func(*args)


def _set_storage(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put the tensor on the storage's device with tensor.set_(storage, …)."""
    self, source = args[0], args[1] if len(args) > 1 else kwargs.get("source")
    result = func(*args, **kwargs)
    if isinstance(source, _Tensor):
        return put(result, source._composesim_device)
    tag = getattr(getattr(source, "_untyped_storage", source), "_composesim_device", None)
    return put(result, self._composesim_device if tag is None else tag)


def _storage(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    storage = func(*args, **kwargs)
    tag = args[0]._composesim_device
    if tag is not None:
        getattr(storage, "_untyped_storage", storage)._composesim_device = tag
    return storage


def _parse_to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Parse the arguments of `module.to`; torch alone does not know which device a number means."""
    kwargs = dict(kwargs)
    copying = kwargs.pop("copy", None)
    rest = list(args)
    if rest and isinstance(rest[0], int) and not isinstance(rest[0], bool):
        rest[0] = devices.device(devices.index_of(rest[0]))
    if isinstance(kwargs.get("device"), int):
        kwargs["device"] = devices.device(devices.index_of(kwargs["device"]))
    if copying is not None:
        kwargs["copy"] = copying
    parsed = func(*rest, **kwargs)
    other = next(tensors_in(args, kwargs), None)
    device = None if other is None else device_of(other)
    return parsed if device is None else (device, *parsed[1:])


def _packed_sequence(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put the batch sizes, and the lengths that they are made from, on the CPU."""
    data, sizes = func(*args, **kwargs)
    return put(data, args[0]._composesim_device), put(sizes, CPU)


_QUERIES_TEXT = (
    "dim size numel nelement stride item tolist element_size data_ptr is_contiguous is_floating_point "
    "is_complex is_signed storage_offset __len__ __bool__ __float__ __int__ __hash__ ndimension "
    "retain_grad register_hook register_post_accumulate_grad_hook backward __index__"
)
_QUERIES = tuple(_QUERIES_TEXT.split())
_PROPERTIES_TEXT = (
    "shape dtype requires_grad is_leaf grad_fn ndim layout names _version retains_grad output_nr is_sparse is_meta "
    "is_nested is_quantized is_sparse_csr is_mkldnn is_mps is_xpu"
)
_PROPERTIES = tuple(_PROPERTIES_TEXT.split())


def install() -> None:
    """Register the functions."""
    tensor: Any = _Tensor
    for name in _QUERIES:
        if hasattr(tensor, name):
            special[getattr(tensor, name)] = as_it_is
    for name in _PROPERTIES:
        if hasattr(tensor, name):
            special[getattr(tensor, name).__get__] = as_it_is
    special[tensor.requires_grad.__set__] = as_it_is
    special.update(
        {
            tensor.to: _to,
            tensor.cuda: _cuda,
            tensor.cpu: _cpu,
            tensor.device.__get__: _device,
            tensor.is_cuda.__get__: _is_cuda,
            tensor.is_cpu.__get__: _is_cpu,
            tensor.get_device: _get_device,
            tensor.numpy: _numpy,
            tensor.__array__: _numpy,
            tensor.__dlpack_device__: _dlpack_device,
            tensor.__dlpack__: _dlpack_device,
            tensor.type: _type,
            tensor.type_as: _type_as,
            tensor.pin_memory: _pin_memory,
            tensor.is_pinned: _is_pinned,
            tensor.data.__set__: _set_data,
            tensor.data.__get__: _get_same,
            tensor.grad.__get__: _get_same,
            tensor.grad.__set__: _set_grad,
            tensor.set_: _set_storage,
            tensor.untyped_storage: _storage,
            tensor.storage: _storage,
            torch._C._nn._parse_to: _parse_to,
            torch._VF._pack_padded_sequence: _packed_sequence,
            torch._VF._pad_packed_sequence: _packed_sequence,
        }
    )
    if hasattr(torch, "get_device"):
        special[torch.get_device] = _get_device
