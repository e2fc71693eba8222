"""Measure the memory of a training step, for the programs of the lessons: what is kept for backward, and what lives on."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class _Kept:
    """A tensor that autograd keeps for backward."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.drop: Callable[[], object] = bool  # what to call once backward has used it


class Activations:
    """Count the bytes that autograd keeps for backward while this is active; those of `parameters` are there anyway."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.most = self._now = 0
        self._own = {each.untyped_storage().data_ptr() for each in parameters}
        self._users: Counter[int] = Counter()  # of each storage
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> "Activations":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> _Kept:
        kept, storage = _Kept(tensor), tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self._own:
            self._users[place] += 1
            self._now += size if self._users[place] == 1 else 0
            self.most = max(self.most, self._now)
            kept.drop = weakref.finalize(kept, self._drop, place, size)
        return kept

    def _unpack(self, kept: _Kept) -> Tensor:
        kept.drop()  # backward is here; an observer may hold the graph for longer
        return kept.tensor

    def _drop(self, place: int, size: int) -> None:
        self._users[place] -= 1
        self._now -= size if not self._users[place] else 0


class Storages(TorchDispatchMode):
    """Note how many elements large tensors have at once while this is active, whoever keeps them; those of `given` do not count."""

    def __init__(self, given: list[Tensor], *, at_least: int) -> None:
        super().__init__()
        self.at_least = at_least  # elements of a tensor that counts
        self.most = self.largest = 0  # elements, of all of them at once and of one
        self._given = {each.untyped_storage()._cdata for each in given}
        self._found: dict[int, tuple[StorageWeakRef, int]] = {}  # with the bytes of an element

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To skip it, torch would import it first, which takes as long as the rest; nothing is compiled here.
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if is_of_parts(types):
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        for each in _tensors((args, result)):
            storage = each.untyped_storage()
            elements = storage.nbytes() // each.element_size()
            is_counted = elements >= self.at_least and storage.device.type != "meta"  # which has sizes, and no memory
            if is_counted and storage._cdata not in self._given and storage._cdata not in self._found:
                self._found[storage._cdata] = StorageWeakRef(storage), each.element_size()
                self.largest = max(self.largest, elements)
        self._found = {place: each for place, each in self._found.items() if not each[0].expired()}
        self.most = max(self.most, sum(_bytes(kept) // size for kept, size in self._found.values()))
        return result


def is_of_parts(types: tuple[type, ...]) -> bool:
    """Return whether an operation has DTensors, which call again with the part of this rank, or what a collective returns for them."""
    return any(hasattr(each, "to_local") or hasattr(each, "trigger_wait") for each in types)


def _bytes(kept: StorageWeakRef) -> int:
    """Return the bytes that a storage has now: fully_shard frees them, and keeps the storage."""
    storage = torch.UntypedStorage._new_with_weak_ptr(kept.cdata)
    return storage.nbytes() if storage is not None else 0


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def living() -> dict[int, int]:
    """Return the bytes of each storage of tensors that are alive, by its address."""
    gc.collect()
    found = {}
    for each in gc.get_objects():
        if isinstance(each, torch.Tensor) and type(each) in (Tensor, torch.nn.Parameter) and not each.is_sparse:
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            if each.is_leaf and each.grad is not None:
                found[each.grad.untyped_storage().data_ptr()] = each.grad.untyped_storage().nbytes()
    return found
