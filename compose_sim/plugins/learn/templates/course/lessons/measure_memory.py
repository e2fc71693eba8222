"""Measure the memory of a training step, for the programs of the lessons: tensors, whoever keeps them, and other objects."""

import gc
import tracemalloc
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Storages(TorchDispatchMode):
    """
    Note how much tensors hold at once while this is active, whoever keeps them, besides those of `given` and their gradients.

    A storage counts with what it holds at that moment: with nothing after `resize_(0)`, and with what it has grown by, if it is given.
    """

    def __init__(self, given: list[Tensor], *, at_least: int = 1) -> None:
        super().__init__()
        self.at_least = at_least  # elements of a tensor that counts
        self.most = self.largest = self.most_bytes = 0  # elements, of all of them at once and of one
        self._given = given
        self._free = {each.untyped_storage()._cdata: _bytes(each) for each in given}
        self._found: dict[int, tuple[StorageWeakRef, int, int]] = {}  # with the bytes of an element, and of all
        self._bytes = 0  # of what was found, some of which may be gone
        self._resize = torch.UntypedStorage.resize_

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To skip it, torch would import it first, which takes as long as the rest; nothing is compiled here.
        return False

    def __enter__(self):
        self._resize = resize = torch.UntypedStorage.resize_

        def noticed(storage: torch.UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if storage._cdata in self._found:
                self._note(storage, self._found[storage._cdata][1])
            return result

        torch.UntypedStorage.resize_ = noticed  # no operator, so that it is not dispatched
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if _is_of_parts(types):
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        for each in filter(_has_storage, _tensors((args, result))):
            self._note(each.untyped_storage(), each.element_size())
        if self._bytes > self.most_bytes:
            self._count()
        return result

    def _note(self, storage: torch.UntypedStorage, size: int) -> None:
        place, now = storage._cdata, storage.nbytes()
        known = self._found.get(place)
        if storage.device.type == "meta":  # which has sizes, and no memory
            return
        if known is None or known[2] != now:
            self._found[place] = (known[0] if known else StorageWeakRef(storage)), size, now
            self._bytes += now - (known[2] if known else 0)

    def _count(self) -> None:
        gradients = [each.grad for each in self._given if each.requires_grad and each.is_leaf and each.grad is not None]
        free = self._free | {each.untyped_storage()._cdata: _bytes(each) for each in gradients}
        self._found = {place: each for place, each in self._found.items() if not each[0].expired()}
        self._bytes = sum(count for _, _, count in self._found.values())
        beyond = [(size, max(0, count - free.get(place, 0))) for place, (_, size, count) in self._found.items()]
        counted = [(count // size, count) for size, count in beyond if count // size >= self.at_least]
        self.largest = max((self.largest, *(elements for elements, _ in counted)))
        self.most = max(self.most, sum(elements for elements, _ in counted))
        self.most_bytes = max(self.most_bytes, sum(count for _, count in counted))


class Objects:
    """Note the bytes of what is no tensor and is made while this is active: objects of Python, and arrays of NumPy."""

    def __init__(self) -> None:
        self.most = 0  # at once

    def __enter__(self) -> "Objects":
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.most = max(self.most, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    @property
    def now(self) -> int:
        """The bytes at this moment."""
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


def _is_of_parts(types: tuple[type, ...]) -> bool:
    """Return whether an operation has DTensors, which call again with the part of this rank, or what a collective returns for them."""
    return any(hasattr(each, "to_local") or hasattr(each, "trigger_wait") for each in types)


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
        if type(each) in (Tensor, torch.nn.Parameter) and not each.is_sparse:
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            if each.is_leaf and each.grad is not None:
                found[each.grad.untyped_storage().data_ptr()] = each.grad.untyped_storage().nbytes()
    return found
