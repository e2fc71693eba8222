"""Which collectives does the script issue, in what order, and where? Each is noted before it may wait for the others.

The functions of torch.distributed offer no hook, so each is wrapped, in the module that defines it and before
torch.distributed copies it. The wrappers only look at their arguments.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import zlib
from types import ModuleType
from typing import Any, Callable

from ...shared.import_hooks import after_import
from ..context import Watch, here, place

_MOST_NOTED = 5000  # in an ordinary run; later ones are only counted, and hashed
_SAME = {  # other names of the same collective
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
_OWN = {  # the tensors that a rank gives: they say what it expects the others to give
    **dict.fromkeys(("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter"), "tensor"),
    **dict.fromkeys(("all_reduce_coalesced",), "tensors"),
    **dict.fromkeys(("all_gather_single", "all_gather_into_tensor", "_all_gather_base"), "input_tensor"),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base"), "input"),
    **dict.fromkeys(("all_to_all_single",), "input"),
    **dict.fromkeys(("reduce_scatter",), "input_list"),
    **dict.fromkeys(("all_to_all",), "input_tensor_list"),
    **dict.fromkeys(("all_gather_coalesced",), "input_tensor_list"),
}
_PEERS = {"all_gather": "tensor_list", "gather": "gather_list", "scatter": "scatter_list"}
_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
_NAMES = (*_OWN, *_OBJECTS, "barrier", "monitored_barrier", "new_group", "split_group")
_PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
_BLOCKING_PAIRS = ("send", "recv", "send_object_list", "recv_object_list")

_COUNT, _HASHES = "collectives.count", "collectives.hashes"
_LOOSE = "collectives.loose_at"
_inside = threading.local()  # a collective made of others counts once


def install() -> None:
    after_import("torch.distributed.distributed_c10d", _after_distributed)
    after_import("torch._dynamo", _after_dynamo)


def end(watch: Watch) -> None:
    error = sys.exc_info()[1]  # what ended the script, where that was an exception
    if isinstance(error, SystemExit) and not error.code:
        error = None
    watch.note("outcome", raised=_told(error) if error else None)
    count = watch.memory.get(_COUNT, 0)
    if count > _MOST_NOTED:
        watch.note("collectives", count=count, hashes=watch.memory[_HASHES])


def loosely_ordered(watch: Watch, how: str) -> None:
    """The rank may have waited for another in a way that is not followed: a message, a store, a lock, a sleep."""
    if watch.memory.get(_LOOSE) != watch.synchronisations:
        watch.memory[_LOOSE] = watch.synchronisations
        watch.note("loose", how=how, sync=watch.synchronisations)


def _after_distributed(module: ModuleType) -> None:
    for name in _NAMES:
        if hasattr(module, name):
            setattr(module, name, _wrap(module, name, getattr(module, name)))
    for name in _PAIRS:
        if hasattr(module, name):
            setattr(module, name, _wrap_pair(name, getattr(module, name)))


def _after_dynamo(module: ModuleType) -> None:
    """Have the compiler leave our code alone: it compiles each collective as it would without us, or calls it."""
    global _begin, _finish, _begin_pair
    disable = sys.modules["torch"].compiler.disable
    _begin, _finish, _begin_pair = disable(_begin), disable(_finish), disable(_begin_pair)
    for function in (_wrap(None, "", _nothing), _wrap_pair("", _nothing)):
        module.eval_frame.skip_code(function.__code__)  # one code object serves all wrappers of a kind


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
            _tell_failure(begun, error)
            raise
        finally:
            _finish(begun)

    collective._torchdynamo_disable = True  # type: ignore[attr-defined]  # a call that is not compiled is called
    return collective


def _begin(
    module: Any, name: str, positions: dict[str, int], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Watch | None:
    """The Watch, where this is the outermost collective of its thread and the rank takes part in it."""
    watch = here()
    if watch is None or getattr(_inside, "yes", False) or not module.is_initialized():
        return None

    def value(parameter: str) -> Any:
        if parameter in options:
            return options[parameter]
        index = positions.get(parameter, len(arguments))
        return arguments[index] if index < len(arguments) else None

    try:
        if not _note(watch, module, name, value):
            return None
    except Exception as error:  # noqa: BLE001 - the collective itself will say what is wrong with its arguments
        watch.note("observer-failed", observer=__name__, traceback=repr(error))
        return None
    _inside.yes = True
    return watch


def _finish(watch: Watch) -> None:
    _inside.yes = False
    watch.progress.advance("collectives")
    watch.wait_in("")


def _tell_failure(watch: Watch, error: BaseException) -> None:
    watch.note("collective-failed", n=watch.memory.get(_COUNT), error=_told(error))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _note(watch: Watch, module: Any, name: str, value: Callable[[str], Any]) -> bool:
    """Note one collective; False where this rank has no part in it."""
    group = None if name in ("new_group", "split_group") else value("group")
    if name == "new_group" and value("use_local_synchronization"):
        return False
    if module.get_rank(group) < 0:
        return False
    memory, op = watch.memory, _SAME.get(name, name)
    count = memory[_COUNT] = memory.get(_COUNT, 0) + 1
    at = place(4)
    ranks = sorted(module.get_process_group_ranks(group))
    data = _describe(module, name, group, value)
    if watch.thorough or count <= _MOST_NOTED:
        group_name = getattr(group if group is not None else module.group.WORLD, "group_name", "")
        watch.note("collective", op=op, group=ranks, name=group_name, **data, at=at, n=count)
    else:
        hashes = memory.setdefault(_HASHES, {})
        key = ",".join(map(str, ranks))
        hashes[key] = zlib.crc32(repr((op, data)).encode(), hashes.get(key, 0))
    watch.synchronisations += 1
    where = f" ({os.path.basename(at[0])}, line {at[1]})" if at else ""  # noqa: PTH119 - a microsecond, not ten
    watch.wait_in(f"{op} #{count}{where}")
    watch.flush()
    return True


def _describe(module: Any, name: str, group: Any, value: Callable[[str], Any]) -> dict[str, Any]:
    """What the ranks of a group must agree on; values that are not known are left out."""
    data: dict[str, Any] = {}
    own = value(_OWN[name]) if name in _OWN else None
    if own is not None:
        listed = isinstance(own, (list, tuple))
        data["shape"] = [list(each.shape) for each in own] if listed else list(own.shape)
        data["dtype"] = str((own[0] if listed else own).dtype)[6:]
    if name in ("all_to_all_single", "all_to_all"):
        data.pop("shape", None)  # each pair of ranks agrees on its own
    peers = value(_PEERS[name]) if name in _PEERS else None
    if peers:
        shapes = [list(each.shape) for each in peers]
        if any(shape != data["shape"] for shape in shapes):
            data["peers"] = shapes
    for side in ("src", "dst"):
        root, in_group = value(side), value(f"group_{side}")
        if in_group is not None:
            root = module.get_global_rank(group if group is not None else module.group.WORLD, in_group)
        if root is None and name.split("_")[0] in {"src": ("scatter", "broadcast"), "dst": ("gather",)}[side]:
            root = 0
        if root is not None:
            data["root"] = root
    reduce = value("op")
    if reduce is not None and str(reduce) != "RedOpType.SUM":  # what torch takes where nothing is asked for
        data["reduce"] = str(reduce).rpartition(".")[2]
    if name in ("new_group", "split_group"):
        asked = value("ranks") if name == "new_group" else value("split_ranks")
        data["ranks"] = sorted(asked) if name == "new_group" and asked else asked
    if value("async_op"):
        data["async"] = True
    return data


def _wrap_pair(name: str, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def pair(*arguments: Any, **options: Any) -> Any:
        begun = _begin_pair(name)
        if begun is None:
            return original(*arguments, **options)
        try:
            return original(*arguments, **options)
        finally:
            _finish(begun)

    pair._torchdynamo_disable = True  # type: ignore[attr-defined]  # as above
    return pair


def _begin_pair(name: str) -> Watch | None:
    """Messages between two ranks follow no common order; only where one waits is told."""
    watch = here()
    if watch is None or getattr(_inside, "yes", False):
        return None
    loosely_ordered(watch, name)
    if name in _BLOCKING_PAIRS:
        at = place(3)
        where = f" ({os.path.basename(at[0])}, line {at[1]})" if at else ""  # noqa: PTH119 - as above
        watch.wait_in(f"{name}{where}")
        watch.flush()
    _inside.yes = True
    return watch
