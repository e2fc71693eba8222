"""Prepare a process for a script whose tensors are fake, with shapes and without data: no files, real batches, numbers for values."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Callable


def write_no_file(torch: Any) -> None:
    """Let the script save nothing: a checkpoint of fake tensors must not replace a real one."""
    cache = os.path.expanduser("~/.cache")  # noqa: PTH111 - Path raises an error if there is no home
    folders = tuple(os.path.realpath(each) for each in (tempfile.gettempdir(), "/dev", "/proc", cache))

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            path = os.path.realpath(arguments[0])
            if not path.startswith(tuple(f"{folder}{os.sep}" for folder in folders)) and "__pycache__" not in path:
                raise PermissionError(f"an estimate writes no files: '{arguments[0]}'")

    torch.save = lambda *_, **__: None
    sys.addaudithook(refuse)


def resident_bytes(process: int | str = "self") -> int:
    """Return the memory of a process that is in use; of one that has ended, 0."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


def read_data_for_real(torch: Any) -> None:
    """Let samplers and data sets work with data: only the batches matter, and their shapes."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    loading: Any = import_module("torch.utils.data.dataloader")

    def for_real(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with unset_fake_temporarily():
                return method(*arguments, **options)

        return call

    loading._BaseDataLoaderIter.__next__ = for_real(loading._BaseDataLoaderIter.__next__)
    loading.DataLoader.__iter__ = for_real(loading.DataLoader.__iter__)


def plain_numbers(torch: Any, asked: Callable[[], None] = lambda: None) -> Any:
    """Return a mode in which `loss.item()` is 1, after calling `asked`: a fake tensor has no value."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    class PlainNumbers(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not args or not isinstance(args[0], FakeTensor):
                return func(*args, **(kwargs or {}))
            if func is torch.ops.aten._local_scalar_dense.default:
                asked()
                kind = args[0].dtype
                return True if kind == torch.bool else 1.0 if kind.is_floating_point else 1
            if func is torch.ops.aten.equal.default:
                return True
            return func(*args, **(kwargs or {}))

    made: Any = PlainNumbers
    return made()


def convert_in_place(torch: Any) -> None:
    """Let `module.to(…)` keep its parameters: torch would swap fake ones for others, and refuses, as its own memo refers to them."""
    from torch._subclasses.fake_tensor import FakeTensor

    module = torch.nn.Module
    original = module._apply

    def _apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        own = [each for each in self._parameters.values() if each is not None]
        if not any(isinstance(each, FakeTensor) for each in own):
            return original(self, fn, recurse)
        for child in self.children() if recurse else ():
            child._apply(fn)
        with torch.no_grad():
            for parameter in own:
                parameter.data = fn(parameter)
                if parameter.grad is not None:
                    parameter.grad = fn(parameter.grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    module._apply = _apply
