"""Let storages of emulated tensors have tags too, for torch.save and torch.load."""

from __future__ import annotations

from typing import Any

import torch

from . import devices
from .devices import CPU

_TAG = "_composesim_device"


def install() -> None:
    """Give storages a tag, and let them move as CUDA's do.

    No mode sees storages, because they are not tensors. torch.save writes the `device` of a storage, such as `cuda:1`;
    torch.load moves the storages that it reads to the device in the file or in `map_location`, with torch's own checks
    and errors.
    """
    storage: Any = torch.UntypedStorage
    typed: Any = torch.TypedStorage
    setattr(storage, _TAG, None)
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
        if (CPU if self._composesim_device is None else self._composesim_device) == tag:
            return self
        return _copied(self, tag)

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
