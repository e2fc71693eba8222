"""Record every collective that the script issues, in order and with the line, before it can block.

The functions of torch.distributed have no hooks, so each is wrapped in the module that defines it, before torch.distributed
copies it. The wrappers only read the arguments.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import zlib
from types import FrameType, ModuleType
from typing import Any, Callable

from ...records.process_groups import Collective, CollectiveFailed, LaterCollectives, LaterInGroup, UntrackedWait
from ...records.record import Place, Shape
from ...shared.frames import is_user_code
from ...shared.import_hooks import after_import
from ..context import RankContext, describe_error, here, place, where

_MOST_NOTED = 5000  # of each group in an ordinary run; later ones are only counted and hashed
_SAME = {  # other names of the same collective
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
_OWN = {  # the parameter with the tensors that a rank gives, to which those of the other ranks must correspond
    **dict.fromkeys(("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter"), "tensor"),
    **dict.fromkeys(("all_reduce_coalesced",), "tensors"),
    **dict.fromkeys(("all_gather_single", "all_gather_into_tensor", "_all_gather_base"), "input_tensor"),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base"), "input"),
    **dict.fromkeys(("all_to_all_single",), "input"),
    **dict.fromkeys(("reduce_scatter",), "input_list"),
    **dict.fromkeys(("all_to_all",), "input_tensor_list"),
    **dict.fromkeys(("all_gather_coalesced",), "input_tensor_list"),
}
_GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single", "_all_gather_base")
_FEW = 8  # numbers: a metric
_PEERS = {"all_gather": "tensor_list", "gather": "gather_list", "scatter": "scatter_list"}
_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
_NAMES = (*_OWN, *_OBJECTS, "barrier", "monitored_barrier", "new_group", "split_group")

_COUNT, _OF_GROUPS, _UNTRACKED = (f"collectives.{name}" for name in ("count", "of_groups", "untracked_at"))
_inside = threading.local()


def install() -> None:
    after_import("torch.distributed.distributed_c10d", _after_distributed)
    after_import("torch._dynamo", _after_dynamo)


def end(context: RankContext) -> None:
    later = tuple(each for each in context.memory.get(_OF_GROUPS, {}).values() if each.number > 0)
    if later:
        context.note(LaterCollectives(later))


def issued(context: RankContext) -> int:
    """Return how many collectives the script has issued so far."""
    return int(context.memory.get(_COUNT, 0))


def is_inside() -> bool:
    """Return whether this thread is in a collective or a message: what that is made of counts once."""
    return bool(getattr(_inside, "yes", False))


def set_inside(yes: bool) -> None:
    """Note that this thread enters or leaves a collective or a message."""
    _inside.yes = yes


def note_untracked_wait(context: RankContext, how: str) -> None:
    """Record that the rank may have waited for another by a message, a store, a lock or a sleep; once between two collectives."""
    if context.memory.get(_UNTRACKED) != context.synchronizations:
        context.memory[_UNTRACKED] = context.synchronizations
        context.note(UntrackedWait(how))


def argument_reader(
    positions: dict[str, int], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Callable[[str], Any]:
    """Return a function that returns the value of a parameter in a call; None if the call leaves it out."""

    def value(parameter: str) -> Any:
        if parameter in options:
            return options[parameter]
        index = positions.get(parameter, len(arguments))
        return arguments[index] if index < len(arguments) else None

    return value


def _after_distributed(module: ModuleType) -> None:
    for name in _NAMES:
        if hasattr(module, name):
            setattr(module, name, _wrap(module, name, getattr(module, name)))


def _after_dynamo(module: ModuleType) -> None:
    """Keep the compiler out of our code: it compiles each collective as it would without us, or calls it."""
    global _begin, _finish
    disable = sys.modules["torch"].compiler.disable
    _begin, _finish = disable(_begin), disable(_finish)
    module.eval_frame.skip_code(_wrap(None, "", _nothing).__code__)  # one code object serves all wrappers


def _nothing() -> None: ...


def _wrap(module: Any, name: str, original: Callable[..., Any]) -> Any:
    positions = {parameter: index for index, parameter in enumerate(inspect.signature(original).parameters)}

    @functools.wraps(original)
    def collective(*arguments: Any, **options: Any) -> Any:
        begun = _begin(module, name, positions, arguments, options)
        if begun is None:
            return original(*arguments, **options)
        try:
            return original(*arguments, **options)
        except BaseException as error:
            begun.note(CollectiveFailed(describe_error(error)))
            raise
        finally:
            _finish(begun)

    collective._torchdynamo_disable = True  # type: ignore[attr-defined]  # a call that is not compiled is called
    return collective


def _begin(
    module: Any, name: str, positions: dict[str, int], arguments: tuple[Any, ...], options: dict[str, Any]
) -> RankContext | None:
    """Return the rank's context if this is the outermost collective of the thread and the rank takes part in it."""
    context = here()
    if context is None or is_inside() or not module.is_initialized():
        return None

    value = argument_reader(positions, arguments, options)
    # If the arguments are wrong, the collective itself will raise.
    if not context.guard(__name__, _note, module, name, value, place()):
        return None
    set_inside(True)
    return context


def _finish(context: RankContext) -> None:
    set_inside(False)
    context.progress.advance("collectives")
    context.wait_in("")


def _note(context: RankContext, module: Any, name: str, value: Callable[[str], Any], at: Place | None) -> bool:
    """Record one collective; return False if this rank has no part in it."""
    group = None if name in ("new_group", "split_group") else value("group")
    if name == "new_group" and value("use_local_synchronization"):
        return False
    if module.get_rank(group) < 0:
        return False
    memory, op = context.memory, _SAME.get(name, name)
    count = memory[_COUNT] = memory.get(_COUNT, 0) + 1
    ranks = tuple(sorted(module.get_process_group_ranks(group)))
    facts = _describe(module, name, group, value)
    more = context.guard(f"{__name__}.values", _look_closer, name, value) if context.mode == "record" else None
    group_name = getattr(group if group is not None else module.group.WORLD, "group_name", "")
    later = _later(memory.setdefault(_OF_GROUPS, {}), ranks, group_name, (op, facts))
    if context.thorough or later.number <= 0:
        context.note(Collective(op, ranks, group_name, at=at, **facts, **(more or {})))
    context.synchronizations += 1
    of_group = f" of group {group_name}" if group not in (None, module.group.WORLD) else ""
    context.wait_in(f"{op} #{count}{where(at)}{of_group}", group_name, len(ranks))
    context.flush()
    return True


def _later(groups: dict[Any, LaterInGroup], ranks: tuple[int, ...], name: str, what: object) -> LaterInGroup:
    """Count one more collective of a group; the number of those that are too many to be noted begins below zero."""
    known = groups.get((ranks, name)) or LaterInGroup(ranks, name, -_MOST_NOTED, 0)
    digest = zlib.crc32(repr(what).encode(), known.digest) if known.number >= 0 else 0
    groups[ranks, name] = known = known._replace(number=known.number + 1, digest=digest)
    return known


def _describe(module: Any, name: str, group: Any, value: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields of a Collective on which the ranks of a group must agree, as far as they are known."""
    facts: dict[str, Any] = {}
    own = value(_OWN[name]) if name in _OWN else None
    if own is not None:
        given = own if isinstance(own, (list, tuple)) else [own]
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


def _look_closer(_: RankContext, name: str, value: Callable[[str], Any]) -> dict[str, Any]:
    """Return what only `check` looks at: the values of few numbers, whether a gather loses a gradient, whether FSDP called."""
    own = value(_OWN[name]) if name in _OWN else None
    torch: Any = sys.modules["torch"]
    if not isinstance(own, torch.Tensor):
        return {}
    has_gradient = own.grad_fn is not None and torch.is_grad_enabled()
    loses = name in _GATHERS and own.dim() > 1 and has_gradient
    values = map(float, own.detach().flatten().tolist()) if 0 < own.numel() <= _FEW and not own.is_complex() else ()
    found = {"values": tuple(values), "detaches": bool(loses), "through": bool(name == "all_reduce" and has_gradient)}
    return {**found, "by_fsdp": _is_called_by_fsdp()}


def _is_called_by_fsdp() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        if "/torch/distributed/fsdp/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _shapes(tensors: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)
