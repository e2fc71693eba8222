"""Which files does the script open, to read or to write, and between which synchronisations?

Python tells its audit hooks of each open; only torch.save opens in C++, and is wrapped. What libraries and caches open is left out.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
import time
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Callable

from ...shared.frames import is_user_code
from ...shared.import_hooks import after_import
from ..context import Watch, here, place
from .collectives import loosely_ordered

_EVENTS = frozenset({"open", "os.rename", "os.putenv", "fcntl.flock", "fcntl.lockf"})
_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
_MOST_NOTED = 3000
_CHANGING = os.O_WRONLY | os.O_RDWR
_SYSTEM = ("/proc/", "/sys/", "/etc/", "/usr/", "/lib", "/bin/", "/opt/", "/run/")
_NOBODYS = re.compile(
    r"__pycache__|/\.(cache|config|local|matplotlib|keras|nv|cupy|ipython)/|/torchinductor_|/\.triton/|/site-packages/|\.(py|pyc|so|lock|pem|progress)$|/dev/(?!shm/)|/pymp-"
)
_AWAITED = re.compile(
    r"([A-Za-z_][\w.]*)\.(?:exists|is_file)\(\)|os\.path\.(?:exists|isfile)\(\s*([A-Za-z_][\w.]*)\s*\)"
)
_POLLS = re.compile(r"^\s*while\b.*(exists|is_file|isfile)", re.MULTILINE)

_OF_MAPPINGS = ("<frozen ", os.__file__, str(sys.modules["_collections_abc"].__file__))  # what os.environ is made of

_busy = False
_seen: set[tuple[str, str, int]] = set()
_own_run = ""
_system: tuple[str, ...] = ()
_shared: tuple[str, ...] = ()
_private: tuple[str, ...] = ()
_kept: dict[str, str | None] = {}
_polling: dict[str, bool] = {}


def install() -> None:
    after_import("torch.serialization", _after_serialization)


def begin(watch: Watch) -> None:
    global _own_run, _system, _shared, _private
    shared = os.environ.get("COMPOSESIM_SHARED")
    _own_run = _folder(str(watch.events.folder))
    _shared = tuple(_folder(str(each)) for each in (shared, Path.cwd()) if each and str(each) != os.sep)
    prefixes = (sys.prefix, sys.base_prefix, *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib")))
    _system = (*_SYSTEM, *(_folder(each) for each in prefixes))
    own = (os.environ.get("TMPDIR"), os.environ.get("HOME"), "/tmp", "/var/tmp", "/dev/shm")
    _private = tuple(_folder(each) for each in own if each)
    sys.addaudithook(_audit)
    _follow_sleep()


def _folder(path: str) -> str:
    return os.path.realpath(path).rstrip(os.sep) + os.sep


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Called for whatever Python audits: an exception would forbid what is audited, and microseconds would add up."""
    global _busy
    if event not in _EVENTS or _busy:
        return
    _busy = True
    try:
        watch = here()
        if watch is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)):
                _opened(watch, os.fsdecode(path), flags)
        elif event == "os.rename":
            _note(watch, "rename", os.fsdecode(arguments[0]), to=os.fsdecode(arguments[1]))
        elif event == "os.putenv":
            name = os.fsdecode(arguments[0])
            if name in _VARIABLES:
                _note_variable(watch, name, os.fsdecode(arguments[1]))
        else:
            loosely_ordered(watch, event)
    except Exception:  # noqa: BLE001, S110 - a file that is not understood is opened as it would be without us
        pass
    finally:
        _busy = False


def _note_variable(watch: Watch, name: str, value: str) -> None:
    """A variable that the script itself sets; what a library sets is what the library was told."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OF_MAPPINGS):
        frame = frame.f_back
    if frame is None or not is_user_code(frame.f_code.co_filename):
        return
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    written = re.search(rf"""\b{name}["']?\s*]?\s*[=:]\s*["']{re.escape(value)}["']""", line)
    changes = os.environ.get(name) != value  # set in C next, in os.environ itself after that
    at = [frame.f_code.co_filename, frame.f_lineno]
    watch.note("variable", name=name, value=value, changes=changes, written=bool(written), at=at)


def _opened(watch: Watch, path: str, flags: int) -> None:
    if not flags & _CHANGING:
        op = "read"
    elif flags & os.O_EXCL:
        op = "create"  # by whoever comes first
    elif flags & os.O_APPEND:
        op = "append"
    else:
        op = "write" if flags & os.O_TRUNC else "update"
    _note(watch, op, path)


def _note(watch: Watch, op: str, path: str, **more: Any) -> None:
    resolved = _resolve(path)
    if resolved is None:
        return
    key = (op, resolved, watch.synchronisations)
    if key in _seen or len(_seen) >= _MOST_NOTED:
        return
    _seen.add(key)
    at = place(3)
    if "to" in more:
        more["to"] = _resolve(more["to"])
        more["to_private"] = more["to"] is not None and _is_private(more["to"])
    facts = {"exists": Path(resolved).exists(), "private": _is_private(resolved), "polls": _has_polling(at)}
    watch.note("file", op=op, path=resolved, **more, **facts, sync=watch.synchronisations, steps=watch.steps, at=at)


def _resolve(path: str) -> str | None:
    """The file's own name; None for files that are not the script's."""
    absolute = os.path.abspath(path)  # pathlib would take ten times as long here
    if absolute not in _kept:
        resolved = os.path.realpath(absolute)
        if resolved.startswith(_own_run):
            ours = resolved.startswith(_own_run + "shared" + os.sep)
        else:
            ours = resolved.startswith(_shared) or not resolved.startswith(_system)
        _kept[absolute] = resolved if ours and not _NOBODYS.search(resolved) else None
        if len(_kept) > _MOST_NOTED:
            _kept.clear()
            return None
    return _kept[absolute]


def _is_private(path: str) -> bool:
    """Whether each node of a real cluster would have a file of its own there."""
    main = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")  # its folder is there on every node
    return path.startswith(_private) and not path.startswith(
        (*_shared, *([_folder(str(Path(main).parent))] if main else []))
    )


def _has_polling(at: list[Any] | None) -> bool:
    """Whether the script waits for files in a loop, which orders what it does as a barrier would."""
    if at is None:
        return False
    file = str(at[0])
    if file not in _polling:
        _polling[file] = bool(_POLLS.search("".join(linecache.getlines(file))))
    return _polling[file]


def _follow_sleep() -> None:
    """A rank whose script sleeps in a loop waits for something. Python audits sleeping from 3.13 on only."""
    original = time.sleep

    @functools.wraps(original)
    def sleep(seconds: Any, /) -> None:
        watch = here()
        frame = sys._getframe(1)
        if watch is not None and place(1) == [frame.f_code.co_filename, frame.f_lineno]:
            loop = _loop_around(frame)
            if loop:
                loosely_ordered(watch, "sleep")
                _note_awaited(watch, frame, loop)
        original(seconds)

    sleep._torchdynamo_disable = True  # type: ignore[attr-defined]  # the compiler is not to look into it
    time.sleep = sleep


def _note_awaited(watch: Watch, frame: FrameType, loop: str) -> None:
    """The files for which a loop waits until they exist, by the names that the script has for them."""
    global _busy
    if _busy:
        return
    _busy = True
    try:
        for names in _AWAITED.findall(loop):
            path = _value(frame, next(filter(None, names)))
            if isinstance(path, (str, os.PathLike)):
                _note(watch, "await", os.fsdecode(path))
    except Exception:  # noqa: BLE001, S110 - a loop that is not understood is only a loop
        pass
    finally:
        _busy = False


def _value(frame: FrameType, name: str) -> Any:
    """What a dotted name means in a frame, of plain attributes only: nothing of the script is run."""
    first, *rest = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for attribute in rest:
        value = inspect.getattr_static(value, attribute, None)
    return value


def _loop_around(frame: FrameType) -> str:
    """The innermost `while` or `for` around the line that a frame stands on, by indentation; nothing where there is none."""
    try:
        lines = linecache.getlines(frame.f_code.co_filename)
        at = frame.f_lineno - 1
        indent = _indent(lines[at])
        for number in range(at - 1, frame.f_code.co_firstlineno - 2, -1):
            line = lines[number]
            if line.strip() and _indent(line) < indent:
                indent = _indent(line)
                if line.lstrip().startswith(("while ", "for ")):
                    return "".join(lines[number : at + 1])
        if lines[at].lstrip().startswith(("while ", "for ")):
            return lines[at]
    except (IndexError, ValueError):
        pass
    return ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _after_serialization(module: ModuleType) -> None:
    original: Callable[..., Any] = module.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *arguments: Any, **options: Any) -> Any:
        _tell_save("write", f)
        result = original(obj, f, *arguments, **options)
        _tell_save("written", f)
        return result

    module.save = save  # type: ignore[attr-defined]


def _tell_save(op: str, file: Any) -> None:
    global _busy
    watch = here()
    if watch is None or not isinstance(file, (str, os.PathLike)) or _busy:
        return
    _busy = True
    try:
        _note(watch, op, os.fsdecode(file))
    except Exception:  # noqa: BLE001, S110 - as above
        pass
    finally:
        _busy = False
