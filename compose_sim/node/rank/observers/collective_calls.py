"""Describe the collectives that a script issues: what the ranks of a group must agree on, and how many there were.

A line in a loop issues the same collective again and again, with tensors of the same type and shape. It is described once.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from dataclasses import dataclass
from types import FrameType
from typing import Any, Callable

from ...records.process_groups import LaterInGroup
from ...records.record import Place, Shape
from ...shared.frames import is_user_code
from ..context import RankContext, where
from ..observations import to_json
from ..torch_hooks.points import OWN, TorchCall
from . import operands

_MAX_NOTED = 5000  # of each group in an ordinary run; later ones are only counted and hashed
_MAX_KNOWN = 1000  # of each group: tensors may have another shape each time
_SAME = {  # other names of the same collective
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "gather_into_tensor": "gather_single",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single", "_all_gather_base")
_MAX_METRIC = 8  # numbers
_PEERS = {"all_gather": "tensor_list", "gather": "gather_list", "scatter": "scatter_list"}
_OUT = {"all_to_all_single": "output", "all_to_all": "output_tensor_list"}
_OF_GROUPS, _KNOWN = "collectives.of_groups", "collectives.known"
_Value = Callable[[str], Any]


@dataclass
class _Group:
    """The collectives of a process group so far: `later` begins below zero, and is above it once they are only hashed."""

    ranks: tuple[int, ...]
    name: str
    later: int = -_MAX_NOTED
    digest: int = 0


@dataclass
class CollectiveCall:
    """A collective of one line, however often it is issued."""

    op: str
    group: _Group
    facts: bytes  # on which the ranks must agree
    fields: str  # of its record, in JSON
    where: str  # in the script, and in which group, for people

    def count(self) -> bool:
        """Count it once more, and return whether it is one of those that are noted one by one."""
        group = self.group
        if group.later >= 0:
            group.digest = zlib.crc32(self.facts, group.digest)
        group.later += 1
        return group.later <= 0


def later(context: RankContext) -> tuple[LaterInGroup, ...]:
    """Return how many collectives of each group were only counted and hashed."""
    groups: dict[Any, _Group] = context.memory.get(_OF_GROUPS, {})
    return tuple(
        LaterInGroup(each.ranks, each.name, each.later, each.digest) for each in groups.values() if each.later > 0
    )


def recall(context: RankContext, call: TorchCall, at: Place | None) -> CollectiveCall | None:
    """Return what the rank issues; None if it has no part in it."""
    module, name, value, arguments = call.module, call.name, call.value, call.arguments
    group = None if name in ("new_group", "split_group") else value("group")
    if name not in OWN or isinstance(group, int):  # any objects, or a group of other ranks
        return _describe(context, module, name, group, value, at)
    known = context.memory.setdefault(_KNOWN, weakref.WeakKeyDictionary())
    calls: dict[Any, CollectiveCall | None] = known.setdefault(group if group is not None else module.group.WORLD, {})
    given = [_kind_of(each) for each in arguments if each is not group]
    given += [(key, _kind_of(each)) for key, each in call.options.items() if each is not group]
    key = (name, at, *given)
    try:
        known_call = calls.get(key)
    except TypeError:  # an argument that cannot be hashed
        return _describe(context, module, name, group, value, at)
    if known_call is None:
        if len(calls) >= _MAX_KNOWN:
            calls.clear()
        known_call = calls[key] = _describe(context, module, name, group, value, at)
    return known_call


def look_closer(context: RankContext, call: TorchCall) -> str:
    """Return what only `check` records, in JSON: the values of few numbers, what is moved, whether a gather loses a gradient, …"""
    name = call.name
    own = call.value(OWN[name]) if name in OWN else None
    torch: Any = sys.modules["torch"]
    parts = own if isinstance(own, (list, tuple)) else ()
    own = parts[0] if parts else own
    if not isinstance(own, torch.Tensor):
        return ""
    has_gradient = own.grad_fn is not None and torch.is_grad_enabled()
    loses = name in (*GATHERS, "all_to_all", "all_to_all_single") and own.dim() > 1 and has_gradient
    is_metric = 0 < own.numel() <= _MAX_METRIC and not own.is_complex() and not parts
    values = map(float, own.detach().flatten().tolist()) if is_metric else ()
    by_fsdp = _is_called_by_fsdp()
    is_plain = own.numel() > 1 and type(own.detach()) is torch.Tensor and own.layout is torch.strided
    found = {
        "values": tuple(values),
        "detaches": bool(loses),
        "through": bool(name == "all_reduce" and has_gradient),
        "by_fsdp": by_fsdp,
        "moves": operands.kind_of(context, own) if is_plain and not by_fsdp else "",
    }
    return f",{to_json(found)[1:-1]}"


def _describe(
    context: RankContext, module: Any, name: str, group: Any, value: _Value, at: Place | None
) -> CollectiveCall | None:
    if (name == "new_group" and value("use_local_synchronization")) or module.get_rank(group) < 0:
        return None
    op, facts = _SAME.get(name, name), _facts(module, name, group, value)
    ranks = tuple(sorted(module.get_process_group_ranks(group)))
    group_name = getattr(group if group is not None else module.group.WORLD, "group_name", "")
    groups = context.memory.setdefault(_OF_GROUPS, {})
    of_group = groups.setdefault((ranks, group_name), _Group(ranks, group_name))
    parts = _parts(name, value)  # on which pairs of ranks agree, not all of them
    fields = to_json({"op": op, "group": ranks, "name": group_name, "at": at, **facts, **parts})[1:-1]
    named = f" of group {group_name}" if group not in (None, module.group.WORLD) else ""
    return CollectiveCall(op, of_group, repr((op, facts)).encode(), fields, f"{where(at)}{named}")


def _kind_of(value: Any) -> Any:
    """Return what a description depends on: of a tensor, its type and shape."""
    if hasattr(value, "dtype"):
        return value.dtype, value.shape
    return tuple(map(_kind_of, value)) if isinstance(value, (list, tuple)) else value


def _facts(module: Any, name: str, group: Any, value: _Value) -> dict[str, Any]:
    """Return the fields of a Collective on which the ranks of a group must agree, as far as they are known."""
    facts: dict[str, Any] = {}
    own = value(OWN[name]) if name in OWN else None
    if own is not None:
        given = own if isinstance(own, (list, tuple)) else [own]
        if not given or not all(hasattr(each, "dtype") for each in given):  # the collective itself will raise
            return facts
        facts["dtype"] = str(given[0].dtype)[6:]
        if name not in ("all_to_all_single", "all_to_all"):  # in these, each pair of ranks has a separate shape
            facts["shapes"] = _shapes(given)
    peers = value(_PEERS[name]) if name in _PEERS else None
    if peers and any(shape != facts["shapes"][0] for shape in _shapes(peers)):
        facts["peers"] = _shapes(peers)
    for side in ("src", "dst"):
        root, in_group = value(side), value(f"group_{side}")
        if in_group is not None:
            root = module.get_global_rank(group if group is not None else module.group.WORLD, in_group)
        if root is None and name.split("_")[0] in {"src": ("scatter", "broadcast"), "dst": ("gather",)}[side]:
            root = 0
        if root is not None:
            facts["root"] = root
    reduce = value("op")
    reduce = getattr(reduce, "op", reduce)  # of a sum with a factor, which has no name of its own
    if reduce is not None and str(reduce) != "RedOpType.SUM":  # the default
        facts["reduce"] = str(reduce).rpartition(".")[2]
    if name in ("new_group", "split_group"):
        ranks = value("ranks") if name == "new_group" else value("split_ranks")
        facts["ranks"] = repr(sorted(ranks) if name == "new_group" and ranks else ranks)
    return facts


def _parts(name: str, value: _Value) -> dict[str, tuple[int, ...]]:
    """Return how much of an all_to_all goes to and comes from each rank, if that was given."""
    if name not in _OUT:
        return {}
    sends = _sizes(value("input_split_sizes"), value(OWN[name]))
    receives = _sizes(value("output_split_sizes"), value(_OUT[name]))
    return {"sends": sends, "receives": receives} if sends and receives else {}


def _sizes(splits: Any, tensors: Any) -> tuple[int, ...]:
    """Return how much of the first dimension goes to or comes from each rank; () if all have an equal part of one tensor."""
    if splits:
        return tuple(int(each) for each in splits)
    return tuple(int(each.numel()) for each in tensors) if isinstance(tensors, (list, tuple)) else ()


def _is_called_by_fsdp() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        if "/torch/distributed/fsdp/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _shapes(tensors: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)
