"""Keep the emulated devices, tag each tensor with the one that it is on, and replace the classes that name devices.

Tags are small integers, stored as attributes of the Python object, which lives as long as the tensor: 0, 1, … mean cuda:0, cuda:1, …,
CPU means the CPU, and None means unknown. A tensor that torch's C++ code made while no mode was active, such as a gradient in a
hook, has no tag: it can be combined with any device, and counts as on the current device once CUDA is in use.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch

CPU = -1
TAG, PINNED = "_composesim_device", "_composesim_pinned"
real_device = torch.device  # replace_classes() replaces torch.device

_torch: Any = torch
_Tensor: Any = torch.Tensor
_LEGACY = tuple(
    f"{kind}Tensor" for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
)


class _Current(threading.local):
    """The current device of each thread, as in CUDA."""

    index = 0


class _Devices:
    """The devices of this process, and whether it has used them."""

    count = 0
    all: tuple[torch.device, ...] = ()
    process_that_began = 0  # The process that first used CUDA; processes forked from it later may not use CUDA.


_devices = _Devices()
_current = _Current()


def show(count: int) -> None:
    """Show this many devices."""
    _devices.count = count
    _devices.all = tuple(real_device("cuda", index) for index in range(count))


def count() -> int:
    """Return the number of devices."""
    return _devices.count


def device(index: int) -> torch.device:
    """Return the device with this index, as scripts see it."""
    return _devices.all[index]


def current() -> int:
    """Return the current device of this thread."""
    return _current.index


def make_current(index: int) -> int:
    """Make a device the current one of this thread, and return the previous one."""
    before = _current.index
    _current.index = checked(index)
    return before


def exchange(index: int) -> int:
    """Make a device the current one if the index means one; return the previous one, or -1."""
    return make_current(index) if index >= 0 else -1


def begin() -> None:
    """Initialize CUDA: children that are forked later may not use it."""
    if _devices.process_that_began == 0:
        _devices.process_that_began = os.getpid()
    elif is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
            "you must use the 'spawn' start method"
        )


def has_begun() -> bool:
    """Return whether this process has used CUDA."""
    return _devices.process_that_began == os.getpid()


def is_in_bad_fork() -> bool:
    """Return whether this process was forked from one that had used CUDA."""
    return _devices.process_that_began not in (0, os.getpid())


def checked(index: int) -> int:
    """Return the index, or raise CUDA's error if there is no such device."""
    if not 0 <= index < _devices.count:
        raise _error("CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?")
    return index


def is_cuda(value: Any) -> bool:
    """Return whether `device=value` means a CUDA device."""
    if isinstance(value, str):
        return value.startswith("cuda")
    if isinstance(value, real_device):
        return value.type == "cuda"
    return isinstance(value, int) and not isinstance(value, bool)


def index_of(value: Any) -> int:
    """Return the index of the emulated device that is meant, or CPU for another one, and initialize CUDA if it is used."""
    if value is None or is_cuda(value):
        begin()
    return index_without_use(value)


def index_without_use(value: Any) -> int:
    """Return the index as `index_of` does, as the functions of CUDA do that only take note of a device."""
    if value is None or (isinstance(value, int) and value == -1):
        return _current.index
    if not is_cuda(value):
        return CPU
    if isinstance(value, int):
        return checked(value)
    index = (real_device(value) if isinstance(value, str) else value).index
    return _current.index if index is None else checked(index)


def _error(message: str) -> RuntimeError:
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)  # since torch 2.8
    return kind(message)


def tag_tensors() -> None:
    """Let every tensor have a tag."""
    setattr(_Tensor, TAG, None)  # the default for tensors without a tag; faster than a missing attribute
    setattr(_Tensor, PINNED, False)
    _keep_out_of_pickles()
    _follow_subclasses()


def device_of(tensor: Any) -> torch.device | None:
    """Return the emulated device of a tensor; None if it is on a real one, such as the CPU or `meta`."""
    tag = tensor._composesim_device
    if tag is None:
        if not has_begun() or tensor.device.type != "cpu":
            return None
        tag = _current.index
    return None if tag == CPU else device(tag)


def tag_of(tensor: Any) -> int:
    """Return the tag of a tensor, or the default."""
    tag: int | None = tensor._composesim_device
    if tag is not None:
        return tag
    return _current.index if has_begun() else CPU


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
        if device is None or not is_cuda(device):
            return make_wrapper(*arguments, **options)
        if len(arguments) > at:
            arguments = (*arguments[:at], "cpu", *arguments[at + 1 :])
        else:
            options = {**options, "device": "cpu"}
        return put(make_wrapper(*arguments, **options), index_of(device))

    _Tensor._make_wrapper_subclass = staticmethod(_make_wrapper_subclass)


class _DeviceClass(type):
    """The replacement for `torch.device`: the real class does not know which device a number means."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments and isinstance(arguments[0], int) and not isinstance(arguments[0], bool):
            arguments = (f"cuda:{arguments[0]}", *arguments[1:])
        return real_device(*arguments, **options)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, real_device)

    def __subclasscheck__(cls, other: Any) -> bool:
        return other is cls or issubclass(other, real_device)


class _LegacyClass(type):
    """The replacement for `torch.cuda.FloatTensor`: the CPU's class of that name, whose tensors are on the current device."""

    real: Any
    on_cuda: bool

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        made = cls.real(*arguments, **options)
        return put(made, index_of(None) if cls.on_cuda else CPU)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.real) and bool(value.is_cuda) == cls.on_cuda

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "real"), name)


def replace_classes() -> None:
    """Replace the names in torch by classes, because scripts use isinstance."""
    # Only names that scripts call: the C constructors have no hooks, and that of torch.device knows no accelerator here.
    _torch.device = _DeviceClass("device", (), {"__module__": "torch", "__qualname__": "device"})
    for name in _LEGACY:
        real = getattr(torch, name)
        for module, on_cuda in ((_torch, False), (_torch.cuda, True)):
            body = {"__module__": module.__name__, "real": real, "on_cuda": on_cuda}
            setattr(module, name, _LegacyClass(name, (), body))
    _Tensor.__init__ = _tag_new
    for name in ("from_numpy", "frombuffer", "from_file"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    nested: Any = _torch._C._nested
    nested.nested_tensor = _on_its_device(nested.nested_tensor)


def _tag_new(self: Any, *arguments: Any, **options: Any) -> None:
    """Put `torch.Tensor([1.0])` on the CPU, and what is made from a tensor on the tensor's device."""
    if self._composesim_device is None and type(self) is _Tensor:
        source: Any = arguments[0] if arguments and isinstance(arguments[0], _Tensor) else None
        self._composesim_device = CPU if source is None else source._composesim_device


def _on_its_device(function: Any) -> Any:
    @functools.wraps(function)
    def on_its_device(*arguments: Any, device: Any = None, **options: Any) -> Any:
        tag = CPU if device is None else index_of(device)
        return put(function(*arguments, **options), tag)

    return on_its_device


def _on_cpu(function: Any) -> Any:
    @functools.wraps(function)
    def on_the_cpu(*arguments: Any, **options: Any) -> Any:
        return put(function(*arguments, **options), CPU)

    return on_the_cpu
