"""Count the memory of the tensors of a rank, which may be fake, and keep the peak."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """A mode that follows the storages of all tensors that are made while it is active. `peak` is in bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._sizes: dict[int, int] = {}  # by id of the storage
        self._references: dict[int, Any] = {}
        storages: Any = torch.UntypedStorage
        resize = storages.resize_

        def resize_(storage: Any, size: int) -> Any:
            resized = resize(storage, size)
            if id(storage) in self._sizes:
                self._set(id(storage), int(size))
            return resized

        storages.resize_ = resize_  # FSDP frees and restores storages with it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # what it consists of comes here
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.layout == torch.strided:
                self._follow(each.untyped_storage())
        return result

    def _follow(self, storage: Any) -> None:
        key = id(storage)
        if key in self._sizes:
            return
        self._references[key] = weakref.ref(storage, lambda _: self._forget(key))
        self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        self.current += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.current)

    def _forget(self, key: int) -> None:
        self.current -= self._sizes.pop(key, 0)
        self._references.pop(key, None)
