"""Count the collectives of a rank and the bytes of their tensors, and answer them without moving data.

Every collective passes torch's dispatcher, also those of DDP's reducer, FSDP and DTensor, which are written in C++ or call it directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_c10d: Any = import_module("torch.distributed.distributed_c10d")
_backend: Any = import_module("torch._C._distributed_c10d")
# Operator -> the collective, and the arguments with the tensors that this rank gives and gets.
_C10D = {
    "allreduce_": ("all_reduce", 0, 0),
    "allreduce_coalesced_": ("all_reduce", 0, 0),
    "broadcast_": ("broadcast", 0, 0),
    "reduce_": ("reduce", 0, 0),
    "allgather_": ("all_gather", 1, 0),
    "_allgather_base_": ("all_gather", 1, 0),
    "allgather_coalesced_": ("all_gather", 1, 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 1, 0),
    "reduce_scatter_": ("reduce_scatter", 1, 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1, 0),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1, 0),
    "alltoall_": ("all_to_all", 1, 0),
    "alltoall_base_": ("all_to_all", 1, 0),
    "gather_": ("gather", 1, 0),
    "scatter_": ("scatter", 1, 0),
    "send": ("send", 0, None),
    "recv_": ("recv", None, 0),
    "recv_any_source_": ("recv", None, 0),
    "barrier": ("barrier", None, None),
    "monitored_barrier_": ("barrier", None, None),
}
# Of functional collectives, which give the first argument and get the result.
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "isend": "send",
    "irecv": "recv",
}
_VARIANTS = ("_out", "_coalesced")


class Key(NamedTuple):
    """What is counted together."""

    kind: str  # all_reduce
    group: str  # the name of the process group


class Amount(NamedTuple):
    """Calls, and the bytes of the tensors that this rank gives and gets in them."""

    calls: int = 0
    given: int = 0
    received: int = 0


class Traffic(TorchDispatchMode):
    """A mode that counts collectives. Without fake tensors, torch's fake group still fills their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[Key, Amount] = {}
        self.once: dict[Key, Amount] = {}
        self.groups: dict[str, tuple[int, ...]] = {}  # the ranks of each group that was used
        self._is_once = False

    @contextlib.contextmanager
    def happening_once(self) -> Iterator[None]:
        """Count what happens in this context apart from what every step repeats."""
        self._is_once = True
        try:
            yield
        finally:
            self._is_once = False

    def since(self, before: dict[Key, Amount]) -> dict[Key, Amount]:
        """Return what has been counted since `before`, an earlier copy of `counts`."""
        changes = {key: self._minus(now, before.get(key, Amount())) for key, now in self.counts.items()}
        return {key: amount for key, amount in changes.items() if amount.calls}

    @staticmethod
    def _minus(now: Amount, before: Amount) -> Amount:
        return Amount(*(a - b for a, b in zip(now, before)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its own collectives come here
        namespace, name = func.namespace, func._opname
        if namespace == "c10d" and name in _C10D:
            return self._answer(func, name, args, kwargs)
        if namespace == "_c10d_functional":
            result = func(*args, **kwargs)
            base = name.rstrip("_")
            for variant in _VARIANTS:
                base = base[: -len(variant)] if base.endswith(variant) else base
            if base in _FUNCTIONAL:
                group = _argument(func, args, kwargs, "group_name")
                kind = _FUNCTIONAL[base]
                given = 0 if kind == "recv" else _bytes_of(args[0])
                self._count(kind, _group_of(group), given, 0 if kind == "send" else _bytes_of(result))
            return result
        return func(*args, **kwargs)

    def _answer(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        kind, given, received = _C10D[name]
        self._count(
            kind,
            _group_of(_argument(func, args, kwargs, "process_group")),
            0 if given is None else _bytes_of(args[given]),
            0 if received is None else _bytes_of(args[received]),
        )
        if not any(_is_fake(each) for each in tree_leaves(args)):
            func(*args, **kwargs)
        returns = len(func._schema.returns)
        if not returns:
            return None
        done: Any = torch.futures.Future()
        done.set_result([each for each in tree_leaves(args[0]) if isinstance(each, torch.Tensor)])
        # The work of torch's own fake group has no result, with which DDP's reducer fails.
        work = _backend._create_work_from_future(done).boxed()
        return work if returns == 1 else (args[0], work)

    def _count(self, kind: str, group: Any, given: int, received: int) -> None:
        name = group.group_name
        if name not in self.groups:
            self.groups[name] = tuple(dist.get_process_group_ranks(group))
        key = Key(kind, name)
        counts = self.once if self._is_once else self.counts
        before = counts.get(key, Amount())
        counts[key] = Amount(before.calls + 1, before.given + given, before.received + received)


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    names = [each.name for each in func._schema.arguments]
    index = names.index(name)
    return args[index] if index < len(args) else kwargs[name]


def _group_of(value: Any) -> Any:
    if isinstance(value, str):
        return _c10d._resolve_process_group(value)
    return value if isinstance(value, dist.ProcessGroup) else dist.ProcessGroup.unbox(value)


def _bytes_of(value: Any) -> int:
    tensors = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
    return sum(each.numel() * each.element_size() for each in tensors)


def _is_fake(value: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)
