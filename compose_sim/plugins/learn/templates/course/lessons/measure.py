"""Measure what a script does, for the programs of the lessons: at the process group, whatever names and threads the script uses."""

import _thread
import builtins
import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType

import torch
import torch.distributed as dist

_TOKEN = os.environ.pop("COMPOSESIM_LESSON", "")  # only numbers that are printed with it count
_MUCH = 1e9
_MOST_BYTES = 1000  # in the store, in all: enough to make process groups


def report(**numbers: float) -> None:
    """Hand in numbers that the lesson judges; raise RuntimeError if the script has replaced what measures them."""
    _check_measuring(sys._getframe(1))
    print(json.dumps({**numbers, "token": _TOKEN}), flush=True)


def wait_for_the_fault(step: int) -> None:
    """Let all ranks wait in this step until the lesson's fault hits one of them, however fast or busy this machine is."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0":
        dist.barrier()
        if dist.get_rank() == 0:
            print(json.dumps({"step": step}), flush=True)  # the fault waits for it
        time.sleep(30)


def report_share(what: str, count: int, items: Iterable[int]) -> None:
    """Hand in which of `count` things, numbered from 0, this rank did; `what` is such as "adds number". It is drawn, not judged."""
    share = {"what": what, "count": count, "items": [*items]}
    print(json.dumps({"shares": share, "token": _TOKEN}), flush=True)


def difference(pairs: Iterable[tuple[torch.Tensor | None, torch.Tensor]]) -> float:
    """Return the largest difference between elements of tensors and of those wanted; what is no number differs by much."""
    most = 0.0
    for mine, wanted in pairs:
        if mine is None or mine.shape != wanted.shape:
            return _MUCH
        differs = (mine.double() - wanted.double()).abs().nan_to_num(nan=_MUCH, posinf=_MUCH)
        most = max(most, differs.max().item() if differs.numel() else 0.0)
    return most


def largest_of_all_ranks(value: float) -> float:
    """Return the largest of the values that the ranks give; all of them must call this."""
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def instances(cls: type) -> int:
    """Return how many objects of a class, or of one that is derived from it, are alive."""
    gc.collect()
    return sum(issubclass(type(each), cls) for each in gc.get_objects())


class Traffic:
    """
    Note what goes through process groups while this is active, in all threads. If `emptied`, messages arrive as zeros.

    More than a few bytes through a store raise RuntimeError.
    """

    def __init__(self, *, emptied: bool = False) -> None:
        self.emptied = emptied
        self.messages: Counter[int] = Counter()  # by receiver
        self.sent_bytes: Counter[int] = Counter()
        self.message_elements = 0  # sent and received
        # Name, elements of the whole (of its input or its output, whichever has more), and whether the caller goes on meanwhile.
        self.collectives: list[tuple[str, int, bool]] = []
        self.stored_bytes = 0
        self._kept: list[list[torch.Tensor]] = []  # until the messages have left

    def __enter__(self) -> "Traffic":
        _count_at_the_process_group()
        _active.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _active.remove(self)

    def _note(self, name: str, given: dict, args: tuple) -> tuple:
        tensors = _tensors(args[0]) if args else []
        elements = max((sum(each.numel() for each in _tensors(one)) for one in args[:2]), default=0)
        if name == "send":
            self.messages[given["dst"]] += 1
            self.sent_bytes[given["dst"]] += sum(each.numel() * each.element_size() for each in tensors)
            self.message_elements += elements
            if self.emptied:
                self._kept.append([torch.zeros_like(each) for each in tensors])
                return (self._kept[-1], *args[1:])
        elif name.startswith("recv"):
            self.message_elements += elements
        else:
            is_asynchronous = bool(given.get("async_op", given.get("asyncOp", True)))  # its name depends on the version
            is_asynchronous |= threading.current_thread() is not threading.main_thread()
            self.collectives.append((name.strip("_"), 0 if "barrier" in name else elements, is_asynchronous))
        return args

    def elements(self) -> int:
        """
        Return how many elements collectives and messages moved.

        An all-reduce moves its elements twice, as a reduce-scatter and an all-gather. Messages count where they are sent and received.
        """
        return self.message_elements + sum(
            elements * (2 if name.replace("_", "").startswith("allreduce") else 1)
            for name, elements, _ in self.collectives
        )


_active: list[Traffic] = []
_library: list[torch.library.Library] = []  # they last as long as they are referred to


def _count_at_the_process_group() -> None:
    """Let all calls of process groups, by any function of torch in any thread, pass by what counts them."""
    if _library:
        return
    _library.append(torch.library.Library("c10d", "IMPL"))
    key = torch._C.DispatchKey.BackendSelect  # the one that no mode, such as inference_mode, leaves out
    for full_name in filter(lambda each: each.startswith("c10d::"), torch._C._dispatch_get_all_op_names()):
        name, _, overload = full_name.removeprefix("c10d::").partition(".")
        operator = getattr(getattr(torch.ops.c10d, name), overload or "default")
        below = torch._C._dispatch_keyset_full_after(key)
        _library[0].impl(operator, _counted(operator, below), key.name, with_keyset=True)
    for name in ("set", "compare_set", "append", "multi_set", "add"):
        if hasattr(dist.Store, name):
            setattr(dist.Store, name, _counted_in_the_store(getattr(dist.Store, name)))


def _counted(operator, below):
    name, arguments = operator.name().partition("::")[2].partition(".")[0], operator._schema.arguments

    def count(keys, *args, **kwargs):
        for each in _active:
            args = each._note(name, dict(zip((one.name for one in arguments), args, strict=False)), args)
        return operator.redispatch(keys & below, *args, **kwargs)

    return count


def _counted_in_the_store(function):
    def count(self, *args):
        for each in _active:
            parts = [one for arg in args for one in (arg if isinstance(arg, list) else [arg])]
            each.stored_bytes += sum(8 if isinstance(one, int) else len(one) for one in parts)
            if each.stored_bytes > _MOST_BYTES:
                raise RuntimeError(
                    f"more than {_MOST_BYTES} bytes went through a store: use collectives or messages, which are counted here"
                )
        return function(self, *args)

    return count


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [found for each in value for found in _tensors(each)] if isinstance(value, list | tuple) else []


_EVENTS = {  # of sys.audit: what the script does
    "open": "files",
    "sqlite3.connect": "files",
    "mmap.__new__": "files",
    "_thread.start_new_thread": "threads",
    "_thread.start_joinable_thread": "threads",
    "socket.connect": "processes",
    "os.fork": "processes",
    "os.posix_spawn": "processes",
    "subprocess.Popen": "processes",
}
# Modules that open files while the script does something else.
_OTHERS = ("composesim_node.", "importlib.", "_frozen_importlib")
_refused: set[str] = set()


def _notice(event: str, args: tuple) -> None:
    what = _EVENTS.get(event) if _refused else None
    if what not in _refused or (event == "open" and not _is_data(args[0])):
        return
    for frame in _frames(sys._getframe(1)):
        if str(frame.f_globals.get("__name__")).startswith(_OTHERS):
            return
        if _is_script(frame):
            raise RuntimeError(f"{what} are not measured here: do without ('{event}')")


def _is_data(path: object) -> bool:
    """Return whether a file may hold what a script computes: it is not of Python, the system or a module that is imported late."""
    text = str(path)
    return not text.startswith((sys.prefix, sys.base_prefix, "/proc/", "/sys/")) and ".py" not in text


def _noticed(function):
    def start(*args, **kwargs):
        _notice("_thread.start_new_thread", args)  # old versions of Python have no event for it
        return function(*args, **kwargs)

    return start


@contextmanager
def refusing(*what: str) -> Iterator[None]:
    """While this is active, raise RuntimeError in a script that uses "files", "threads" or "processes", which nothing here measures."""
    _refused.update(what)
    try:
        yield
    finally:
        _refused.clear()


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_script(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "script"


class _Measuring(ModuleType):
    """A module that measures a script, to which the script has no access."""

    def __getattribute__(self, name: str) -> object:
        if _is_script(sys._getframe(1)) and (name == "__dict__" or not name.startswith("__")):
            raise RuntimeError(f"script.py reads {self.__name__}.{name}, which belongs to what measures it")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        if any(_is_script(frame) for frame in _frames(sys._getframe(1))):
            raise RuntimeError(f"script.py replaces {self.__name__}.{name}, which belongs to what measures it")
        super().__setattr__(name, value)


def _functions(values: dict) -> dict[str, tuple[object, object]]:
    """Return functions and methods of classes by name, each with its code."""
    found: dict[str, tuple[object, object]] = {}
    for name, value in values.items():
        if isinstance(value, type) and value.__module__ == __name__:
            found |= {f"{name}.{each}": one for each, one in _functions(dict(vars(value))).items()}
        elif isinstance(value, FunctionType):
            found[name] = value, value.__code__
    return found


def _check_measuring(frame: FrameType) -> None:
    """Raise RuntimeError if numbers are not handed in by the program, or if it or this module no longer are what they were."""
    names = vars(_program)
    wrong = [each for each, one in _functions(vars(sys.modules[__name__])).items() if one != _original.get(each, one)]
    wrong += [each for each in _original if each in names and names[each] is not _original[each][0]]
    wrong += [each for each in names if not each.startswith("__") and hasattr(builtins, each)]
    wrong += [each for each, value in names.items() if _is_replaced(value)]
    wrong += [f"torch.distributed.{each}" for each, one in _distributed.items() if vars(dist).get(each) is not one]
    if wrong:
        raise RuntimeError(f"script.py has replaced {wrong[0]}, which measures it")
    if frame.f_globals is not names or any(_is_script(each) for each in _frames(frame)):
        raise RuntimeError(
            f"numbers come from {frame.f_code.co_filename}:{frame.f_lineno}, not from the lesson's program"
        )


def _is_replaced(value: object) -> bool:
    """Return whether a function of the program has got other code."""
    is_own = isinstance(value, FunctionType) and value.__module__ == "__main__"
    return is_own and value.__code__.co_filename.endswith("script.py")


_program = sys.modules["__main__"]
_original = _functions(globals())
_distributed = {name: value for name, value in vars(dist).items() if type(value) is FunctionType}
for _each in (_program, sys.modules[__name__]):  # a script is imported later than this
    _each.__class__ = _Measuring
sys.addaudithook(_notice)
for _module, _name in (
    (_thread, "start_new_thread"),
    (threading, "_start_new_thread"),
    (threading, "_start_joinable_thread"),
):
    if hasattr(_module, _name):
        setattr(_module, _name, _noticed(getattr(_module, _name)))
