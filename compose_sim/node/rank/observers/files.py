"""Record which files the script opens, renames or waits for, and which of the launcher's variables it sets.

Python calls audit hooks for each open; torch.save opens in C++, and is followed. Files that libraries and caches open are ignored.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import stat
import sys
import sysconfig
import time
from pathlib import Path
from types import FrameType
from typing import Any, Callable

from ...records.devices_and_files import FileOp, FileUse, VariableSet
from ...records.record import Place
from ...shared.frames import is_user_code
from ..context import RankContext, here, place
from ..torch_hooks import points
from .checkpoints import content_of
from .collectives import note_untracked_wait

_EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.putenv", "fcntl.flock", "fcntl.lockf"})
_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
_MAX_NOTED = 3000
_CHANGING = os.O_WRONLY | os.O_RDWR
_SYSTEM = ("/proc/", "/sys/", "/etc/", "/usr/", "/lib", "/bin/", "/opt/", "/run/")
_NOT_THE_SCRIPTS = re.compile(
    r"__pycache__|/\.(cache|config|local|matplotlib|keras|nv|cupy|ipython)/|/torchinductor_|/\.triton/|/site-packages/|\.(py|pyc|so|lock|pem|progress)$|/dev/(?!shm/)|/pymp-|/<[^/]*>$"
)  # the last: since Python 3.13, a SyntaxError opens the file that it names, such as <unknown>
_AWAITED = re.compile(
    r"(?<![\w.])([A-Za-z_][\w.]{0,199})\.(?:exists|is_file)\(\)|os\.path\.(?:exists|isfile)\(\s{0,9}([A-Za-z_][\w.]{0,199})\s{0,9}\)"
)
_MISSES, _MAX_FLUSHED = "files.misses", 50  # files that were looked for, and are not there
_POLLS = re.compile(r"^[ \t]{0,199}while\b.{0,999}(exists|is_file|isfile)", re.MULTILINE)

# The frames of an assignment to os.environ
_MAPPING_FILES = ("<frozen ", os.__file__, str(sys.modules["_collections_abc"].__file__))

_busy = False
_seen: set[tuple[str, str, int]] = set()
_run_folder = _record = ""
_system: tuple[str, ...] = ()
_shared: tuple[str, ...] = ()
_private: tuple[str, ...] = ()
_kept: dict[str, str | None] = {}
_polling: dict[str, bool] = {}


def install() -> None:
    points.SAVED.subscribe(_save)


def begin(context: RankContext) -> None:
    global _run_folder, _record, _system, _shared, _private
    shared = os.environ.get("COMPOSESIM_SHARED")
    _run_folder = _folder(str(context.events.folder))
    _shared = tuple(_folder(str(each)) for each in (shared, Path.cwd()) if each and str(each) != os.sep)
    prefixes = (sys.prefix, sys.base_prefix, *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib")))
    _system = (*_SYSTEM, *(_folder(each) for each in prefixes))
    _record = _folder(os.environ.get("COMPOSESIM_RECORD") or _run_folder)  # of the run that a replay repeats
    own = (os.environ.get("TMPDIR"), os.environ.get("HOME"), "/tmp", "/var/tmp", "/dev/shm")
    _private = tuple(_folder(each) for each in own if each)
    sys.addaudithook(_audit)
    _follow_sleep()
    if context.mode == "record":
        _follow_looks()


def _folder(path: str) -> str:
    return os.path.realpath(path).rstrip(os.sep) + os.sep


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Handle an audit event. Python calls this for everything that it audits, so it returns early."""
    if event in _EVENTS and not _busy:
        context = here()
        if context is not None:
            _quietly(_handle, context, event, arguments)


def _handle(context: RankContext, event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, (str, bytes)):
            _note(context, _op(flags), os.fsdecode(path))
    elif event == "os.rename":
        _note(context, "rename", os.fsdecode(arguments[0]), os.fsdecode(arguments[1]))
    elif event == "os.mkdir":
        if context.mode == "record":  # as questions, without which a rank cannot be blamed
            _note(context, "isdir" if os.path.lexists(arguments[0]) else "mkdir", os.fsdecode(arguments[0]))
    elif event == "os.putenv":
        name = os.fsdecode(arguments[0])
        if name in _VARIABLES:
            _note_variable(context, name, os.fsdecode(arguments[1]))
    else:
        note_untracked_wait(context, event)


def _quietly(function: Callable[..., None], *values: Any) -> None:
    """Call a function that may open files itself. An exception in an audit hook would forbid what the script does."""
    global _busy
    if _busy:
        return
    _busy = True
    try:
        function(*values)
    except Exception:  # noqa: BLE001, S110 - the script must go on as it would without us
        pass
    finally:
        _busy = False


def _note_variable(context: RankContext, name: str, value: str) -> None:
    """Record a variable that the script itself sets, not a library."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_MAPPING_FILES):
        frame = frame.f_back
    if frame is None or not is_user_code(frame.f_code.co_filename):
        return
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    written = re.search(rf"""\b{name}["']?\s*]?\s*[=:]\s*["']{re.escape(value)}["']""", line)
    changes = os.environ.get(name) != value  # os.environ changes after this event
    context.note(VariableSet(name, value, changes, bool(written), (frame.f_code.co_filename, frame.f_lineno)))


def _op(flags: int) -> FileOp:
    if not flags & _CHANGING:
        return "read"
    if flags & os.O_EXCL:
        return "create"  # by whichever rank is first
    if flags & os.O_APPEND:
        return "append"
    return "write" if flags & os.O_TRUNC else "update"


def _note(context: RankContext, op: FileOp, path: str, new_name: str = "", content: int = 0) -> None:
    resolved = _resolve(path)
    if resolved is None:
        return
    key = (op, resolved, context.synchronizations)
    if key in _seen or len(_seen) >= _MAX_NOTED:
        return
    _seen.add(key)
    # tempfile.TemporaryFile opens a folder for a file without a name. Of two ranks that make a folder at once, both have made it.
    if op not in ("rename", "isdir", "mkdir") and Path(resolved).is_dir():
        return
    at = place(3)
    to = _resolve(new_name) if new_name else None
    context.note(
        FileUse(
            op=op,
            path=resolved,
            private=_is_private(resolved),
            to=to,
            to_private=to is not None and _is_private(to),
            polls=_has_polling(at),
            sync=context.synchronizations,
            steps=context.steps,
            content=content,
            at=at,
        )
    )


def _resolve(path: str) -> str | None:
    """Return the file's name without symbolic links; None for files that are not the script's."""
    absolute = os.path.abspath(path)  # pathlib would take ten times as long here
    if absolute not in _kept:
        resolved = os.path.realpath(absolute)
        if resolved.startswith(_run_folder):
            ours = resolved.startswith(_run_folder + "shared" + os.sep)
        else:
            ours = resolved.startswith(_shared) or not resolved.startswith(_system)
            ours = ours and not resolved.startswith(_record)
        _kept[absolute] = resolved if ours and not _NOT_THE_SCRIPTS.search(resolved) else None
        if len(_kept) > _MAX_NOTED:
            _kept.clear()
            return None
    return _kept[absolute]


def is_the_scripts(path: str) -> bool:
    """Return whether a file belongs to the script, not to a library or to us."""
    return _resolve(path) is not None


def _is_private(path: str) -> bool:
    """Return whether every machine of a real cluster would have a separate file there."""
    main = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")  # its folder is on every node
    return path.startswith(_private) and not path.startswith(
        (*_shared, *([_folder(str(Path(main).parent))] if main else []))
    )


def _has_polling(at: Place | None) -> bool:
    """Return whether the source file waits for files in a loop, which orders ranks as a barrier would."""
    if at is None:
        return False
    file = at[0]
    if file not in _polling:
        _polling[file] = bool(_POLLS.search("".join(linecache.getlines(file))))
    return _polling[file]


def _follow_sleep() -> None:
    """Wrap time.sleep: a script that sleeps in a loop waits for something. Python audits sleeping only from 3.13 on."""
    original = time.sleep

    @functools.wraps(original)
    def sleep(seconds: Any, /) -> None:
        context = here()
        frame = sys._getframe().f_back  # None if C code calls this, such as an exit handler's
        if context is not None and frame is not None and place(1) == (frame.f_code.co_filename, frame.f_lineno):
            loop = _loop_around(frame)
            if loop:
                note_untracked_wait(context, "sleep")
                _quietly(_note_awaited, context, frame, loop)
        original(seconds)

    sleep._torchdynamo_disable = True  # type: ignore[attr-defined]  # keeps the compiler out
    time.sleep = sleep


def _follow_looks() -> None:
    """Wrap what scripts ask whether a file or folder exists: Python audits no such question."""
    os.path.exists, os.path.isfile, os.path.isdir = map(_looking, (os.path.exists, os.path.isfile, os.path.isdir))
    Path.exists, Path.is_file, Path.is_dir = map(_looking, (Path.exists, Path.is_file, Path.is_dir))  # type: ignore[method-assign]


def _looking(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def look(*arguments: Any, **options: Any) -> bool:
        found = original(*arguments, **options)
        context, path = here(), arguments[0] if arguments else options.get("path")
        frame = sys._getframe().f_back
        if context is None or frame is None or not isinstance(path, (str, os.PathLike)):
            return found
        if is_user_code(frame.f_code.co_filename):
            _quietly(_note_look, context, path, found)
        return found

    look._torchdynamo_disable = True  # type: ignore[attr-defined]  # keeps the compiler out
    return look


def _note_look(context: RankContext, path: str | os.PathLike[str], found: bool) -> None:
    if not found:
        _note(context, "miss", os.fsdecode(path))
        misses = context.memory[_MISSES] = context.memory.get(_MISSES, 0) + 1
        if misses <= _MAX_FLUSHED:
            context.flush()  # another rank may fail, and end the run, while this one makes the file
    elif stat.S_ISDIR(Path(path).stat().st_mode):
        _note(context, "isdir", os.fsdecode(path))


def _note_awaited(context: RankContext, frame: FrameType, loop: str) -> None:
    """Record the files that a loop waits for, by the names that the script has for them."""
    for names in _AWAITED.findall(loop):
        path = _value(frame, next(filter(None, names)))
        if isinstance(path, (str, os.PathLike)):
            _note(context, "await", os.fsdecode(path))


def _value(frame: FrameType, name: str) -> Any:
    """Return the value of a dotted name in a frame. Only plain attributes are read: no code of the script runs."""
    first, *rest = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for attribute in rest:
        value = inspect.getattr_static(value, attribute, None)
    return value


def _loop_around(frame: FrameType) -> str:
    """Return the text of the innermost `while` or `for` around the line of a frame, by indentation; "" if there is none."""
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


def _save(context: RankContext, call: points.TorchCall) -> points.Steps:
    file = call.value("f")
    if isinstance(file, (str, os.PathLike)):
        _quietly(_note, context, "write", os.fsdecode(file))
        yield
        content = context.guard(__name__, content_of, call.value("obj")) if context.thorough else None
        _quietly(_note, context, "written", os.fsdecode(file), "", content or 0)
