"""Emulate the functions that move a tensor or a storage, return its device, or print it."""

from __future__ import annotations

from typing import Any

import torch

from .. import context
from . import devices
from .devices import CPU, PINNED, TAG, device_of, put, tag_of
from .meeting import tensors_in
from .tensors import as_it_is, for_call

_Tensor: Any = torch.Tensor
_real_device = torch.device
# Methods and properties that only return something about a tensor
_QUERIES = (
    "dim size numel nelement stride item tolist element_size data_ptr is_contiguous is_floating_point "
    "is_complex is_signed storage_offset __len__ __bool__ __float__ __int__ __hash__ ndimension "
    "retain_grad register_hook register_post_accumulate_grad_hook backward __index__"
)
_PROPERTIES = (
    "shape dtype requires_grad is_leaf grad_fn ndim layout names _version retains_grad output_nr is_sparse is_meta "
    "is_nested is_quantized is_sparse_csr is_mkldnn is_mps is_xpu"
)
for_call(_Tensor.requires_grad.__set__)(as_it_is)
for_call(*(getattr(_Tensor, name) for name in _QUERIES.split() if hasattr(_Tensor, name)))(as_it_is)
for_call(*(getattr(_Tensor, name).__get__ for name in _PROPERTIES.split() if hasattr(_Tensor, name)))(as_it_is)


@for_call(_Tensor.to)
def _to(func: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Emulate tensor.to(device | dtype | other, …)."""
    rest = list(args)
    device = kwargs.get("device")
    first = rest[0] if rest else kwargs.get("other")
    if isinstance(first, _Tensor):
        if first.device.type != "cpu":
            return func(self, *args, **kwargs)
        kwargs.pop("other", None)
        return _moved(func, self, tag_of(first), first.dtype, *rest[1:], **kwargs)
    if rest and (first is None or isinstance(first, (str, int, _real_device))):
        device = first
        rest = rest[1:]
        if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            kwargs["dtype"] = rest[0]
            rest = rest[1:]
        kwargs.update(zip(("non_blocking", "copy"), rest))
        rest = []
    if device is None:
        return put(func(self, *rest, **kwargs), self._composesim_device)
    kwargs.pop("device", None)
    tag = devices.index_of(device)
    if tag == CPU and _real_device(device).type != "cpu":
        return func(self, device, *rest, **kwargs)
    return _moved(func, self, tag, *rest, **kwargs)


def _moved(func: Any, tensor: Any, tag: int, /, *rest: Any, **kwargs: Any) -> Any:
    """Return a copy of the tensor on another device; on the same device, the tensor itself, or a copy if the type changes."""
    if tensor.device.type != "cpu":  # nothing can be copied from `meta`, as torch reports
        return func(tensor, "cpu", *rest, **kwargs)
    if tensor._composesim_device != tag and (tag != CPU or tag_of(tensor) != CPU):
        kwargs["copy"] = True
    kwargs.pop("non_blocking", None)
    moved = put(func(tensor, *rest, **kwargs) if rest or kwargs else tensor, tag)
    put(getattr(moved, "_local_tensor", None), tag)  # of a DTensor
    return moved


@for_call(_Tensor.cuda)
def _cuda(func: Any, self: Any, /, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    tag = devices.index_of(device)
    if tag == CPU:
        raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
    return _moved(_Tensor.to, self, tag)


@for_call(_Tensor.cpu)
def _cpu(func: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    return _moved(_Tensor.to, self, CPU)


@for_call(_Tensor.device.__get__)
def _device(func: Any, self: Any, /) -> Any:
    return device_of(self) or func(self)


@for_call(_Tensor.is_cuda.__get__)
def _is_cuda(func: Any, self: Any, /) -> bool:
    return device_of(self) is not None or bool(func(self))


@for_call(_Tensor.is_cpu.__get__)
def _is_cpu(func: Any, self: Any, /) -> bool:
    return device_of(self) is None and bool(func(self))


@for_call(_Tensor.get_device, getattr(torch, "get_device", _Tensor.get_device))
def _get_device(func: Any, /, input: Any) -> int:
    device = device_of(input)
    return int(func(input)) if device is None else int(device.index)


@for_call(_Tensor.numpy, _Tensor.__array__)
def _numpy(func: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    device = device_of(self)
    if device is not None and not (kwargs.get("force") or args == (True,)):
        raise TypeError(
            f"can't convert {device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return func(self, *args, **kwargs)


@for_call(_Tensor.__dlpack_device__, _Tensor.__dlpack__)
def _dlpack_device(func: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    device = device_of(self)
    if device is None:
        return func(self, *args, **kwargs)
    where = context.where(context.place())
    raise BufferError(
        f"composesim: a tensor on an emulated {device} cannot be given to another library{where}: use .cpu() first"
    )


@for_call(_Tensor.type)
def _type(func: Any, self: Any, /, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Emulate tensor.type(), which returns a class name, and tensor.type("torch.cuda.FloatTensor"), which moves the tensor."""
    device = device_of(self)
    if dtype is None:
        name: str = func(self)
        return name if device is None else name.replace("torch.", "torch.cuda.", 1)
    if isinstance(dtype, torch.dtype):
        return put(func(self, dtype, *args, **kwargs), self._composesim_device)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    plain = name.replace("torch.cuda.", "torch.", 1)
    tag = CPU
    if plain != name:
        tag = devices.current() if device is None else int(device.index)
        devices.begin()
    return _moved(_Tensor.to, self, tag, getattr(torch, plain.rpartition(".")[2]).dtype)


@for_call(_Tensor.type_as)
def _type_as(func: Any, self: Any, /, other: Any) -> Any:
    return _moved(_Tensor.to, self, tag_of(other), other.dtype)


@for_call(_Tensor.pin_memory)
def _pin_memory(func: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    if device_of(self) is not None:
        raise RuntimeError(
            f"cannot pin '{self.type().replace('torch.', 'torch.cuda.', 1)}' only dense CPU tensors can be pinned"
        )
    if getattr(self, PINNED):
        return self
    pinned = put(self.clone(), CPU)
    setattr(pinned, PINNED, True)
    return pinned


@for_call(_Tensor.is_pinned)
def _is_pinned(func: Any, self: Any, /, *args: Any, **kwargs: Any) -> bool:
    return bool(getattr(self, PINNED))


@for_call(_Tensor.data.__set__)
def _set_data(func: Any, self: Any, other: Any, /) -> None:
    """
    Move the tensor to the device of the other one with `tensor.data = other`, which is how modules are moved.

    On another device, a parameter gets a new AccumulateGrad node, without the hooks of DistributedDataParallel. On the CPU, torch makes
    a new one if the type changes.
    """
    is_plain = type(self) in (torch.Tensor, torch.nn.Parameter) and self.layout is torch.strided
    if is_plain and self.requires_grad and self.is_leaf and tag_of(self) != tag_of(other):
        func(self, torch.empty(0, dtype=torch.float32 if self.dtype == torch.float64 else torch.float64))
    func(self, other)
    self._composesim_device = other._composesim_device


@for_call(_Tensor.data.__get__, _Tensor.grad.__get__)
def _get_same(func: Any, self: Any, /) -> Any:
    """Put `tensor.grad` and `tensor.data` on the tensor's device."""
    value = func(self)
    if value is not None and value._composesim_device is None:
        value._composesim_device = self._composesim_device
    return value


@for_call(_Tensor.grad.__set__)
def _set_grad(func: Any, self: Any, gradient: Any, /) -> None:
    if isinstance(gradient, _Tensor):
        mine, its = self._composesim_device, gradient._composesim_device
        if None not in (mine, its) and mine != its:
            raise RuntimeError(
                "attempting to assign a gradient with device type '{}' to a tensor with device type '{}'. "
                "Please ensure that the gradient and the tensor are on the same device".format(
                    "cpu" if its == CPU else "cuda", "cpu" if mine == CPU else "cuda"
                )
            )
    func(self, gradient)


@for_call(_Tensor.set_)
def _set_storage(func: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Put the tensor on the storage's device with tensor.set_(storage, …)."""
    source = args[0] if args else kwargs.get("source")
    result = func(self, *args, **kwargs)
    if isinstance(source, _Tensor):
        return put(result, source._composesim_device)
    tag = getattr(getattr(source, "_untyped_storage", source), "_composesim_device", None)
    return put(result, self._composesim_device if tag is None else tag)


@for_call(_Tensor.untyped_storage, _Tensor.storage)
def _storage(func: Any, self: Any, /) -> Any:
    storage = func(self)
    tag = self._composesim_device
    if tag is not None:
        getattr(storage, "_untyped_storage", storage)._composesim_device = tag
    return storage


@for_call(torch._C._nn._parse_to)
def _parse_to(func: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Parse the arguments of `module.to`; torch alone does not know which device a number means."""
    rest = list(args)
    if rest and isinstance(rest[0], int) and not isinstance(rest[0], bool):
        rest[0] = devices.device(devices.index_of(rest[0]))
    if isinstance(kwargs.get("device"), int):
        kwargs["device"] = devices.device(devices.index_of(kwargs["device"]))
    if kwargs.get("copy", False) is None:
        del kwargs["copy"]
    parsed = func(*rest, **kwargs)
    other = next(tensors_in(args, kwargs), None)
    device = None if other is None else device_of(other)
    return parsed if device is None else (device, *parsed[1:])


@for_call(torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence)
def _packed_sequence(func: Any, input: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Put the batch sizes, and the lengths that they are made from, on the CPU."""
    data, sizes = func(input, *args, **kwargs)
    return put(data, input._composesim_device), put(sizes, CPU)


@for_call(_Tensor.__repr__)
def _repr(func: Any, self: Any, /, **kwargs: Any) -> str:
    """Add the device, which torch omits for the CPU, to the text that torch makes."""
    text: str = func(self, **kwargs)
    device = device_of(self)
    if device is None or not text.endswith(")") or not isinstance(self, _Tensor):
        return text
    behind = max(text.rfind("]"), 0)
    places = [text.find(f"{name}=", behind) for name in ("size", "dtype", "layout", "grad_fn", "requires_grad")]
    first = min((place for place in places if place >= 0), default=None)
    if first is not None:
        return f"{text[:first]}device='{device}', {text[first:]}"
    return f"{text[:-1]}, device='{device}')"


@for_call(_Tensor.__format__)
def _format(func: Any, self: Any, specification: str, /) -> str:
    if self.dim() and device_of(self) is not None:
        return object.__format__(_repr(_Tensor.__repr__, self), specification)
    text: str = func(self, specification)
    return text


def tag_storages() -> None:
    """Give storages a tag, and let them move as CUDA's do.

    No mode sees storages, because they are not tensors. torch.save writes the `device` of a storage, such as `cuda:1`;
    torch.load moves the storages that it reads to the device in the file or in `map_location`, with torch's own checks
    and errors.
    """
    storage: Any = torch.UntypedStorage
    typed: Any = torch.TypedStorage
    setattr(storage, TAG, None)
    real_device, real_to, real_clone = storage.device, storage.to, storage.clone

    def device(self: Any) -> Any:
        tag = self._composesim_device
        return real_device.__get__(self) if tag is None or tag == CPU else devices.device(tag)

    def is_cuda(self: Any) -> bool:
        return bool(self._composesim_device not in (None, CPU))

    def to(self: Any, *arguments: Any, **options: Any) -> Any:
        wanted = options.get("device", arguments[0] if arguments else None)
        if wanted is None or not (devices.is_cuda(wanted) or str(wanted).startswith("cpu")):
            return real_to(self, *arguments, **options)
        return _moved(self, devices.index_of(wanted))

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return _moved(self, devices.index_of(device))

    def cpu(self: Any) -> Any:
        return _moved(self, CPU)

    def _moved(self: Any, tag: int) -> Any:
        here = CPU if self._composesim_device is None else self._composesim_device
        return self if here == tag else _copied(self, tag)

    def clone(self: Any) -> Any:
        return _copied(self, self._composesim_device) if is_cuda(self) else real_clone(self)

    def _copied(self: Any, tag: int) -> Any:
        copied: Any = torch.UntypedStorage(self.nbytes())
        if self.nbytes():
            copied.copy_(self, False)
        copied._composesim_device = tag
        return copied

    storage.device = property(device)
    storage.is_cuda = property(is_cuda)
    storage.to, storage.cuda, storage.cpu, storage.clone = to, cuda, cpu, clone
    typed.is_cuda = property(lambda self: self._untyped_storage.is_cuda)
