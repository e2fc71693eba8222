"""Run the user's script as a rank: observe the script, and report how it ended.

Arguments of the role `rank`, used by launchers that start a new Python for each rank: [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from ..shared import process, roles
from ..shared.event_log import EventLog
from ..shared.frames import is_ours
from ..shared.shadowing import forget, shadowed_modules
from . import emulate, function_call, gpu_limits, instrument, teardown
from .debugging.hints import hint_for
from .emulate import failures

_LONGEST_WORDS = 2000  # of sys.exit("text"), which may be any text


@dataclass(frozen=True)
class UserProgram:
    """What a rank runs: a script, or a module as with `python -m`."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]

    @staticmethod
    def from_arguments(arguments: list[str]) -> UserProgram:
        is_module = arguments[:1] == ["-m"]
        name, *rest = arguments[1:] if is_module else arguments
        return UserProgram(name=name, is_module=is_module, arguments=tuple(rest))

    @property
    def arguments_of_python(self) -> list[str]:
        """The command line after `python`."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]

    @property
    def command(self) -> list[str]:
        """The command line that would start a new Python with this program."""
        return [sys.executable, "-u", *self.arguments_of_python]

    @property
    def folder(self) -> str:
        """The folder that Python searches first for modules."""
        if self.is_module:
            return str(Path.cwd())
        path = Path(self.name).resolve()
        return str(path if path.is_dir() else path.parent)

    def execute(self) -> NoReturn:
        """Become a new Python that runs this program as a rank."""
        os.execv(sys.executable, roles.command("rank", *self.arguments_of_python))

    def run(self) -> None:
        """Run the program as Python's `__main__`; raises what it raises."""
        main = ModuleType("__main__")
        main.__builtins__ = builtins  # type: ignore[attr-defined]
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:  # multiprocessing's alias, set when it was imported
            sys.modules["__mp_main__"] = main
        sys.orig_argv = self.command
        if self.is_module:
            self._run_module()
        else:
            self._run_script(main)

    def _run_module(self) -> None:
        import runpy

        sys.argv = ["-m", *self.arguments]
        _put_first_on_path(str(Path.cwd()))
        if self.name == function_call.PROGRAM:
            function_call.main(sys.argv[1:])
            return
        # Not public, but `python -m` itself calls it, and it has had this name since Python 2.5. The public run_module
        # deletes the module's namespace when the main code ends, before threads and exit handlers do.
        runpy._run_module_as_main(self.name)  # type: ignore[attr-defined]

    def _run_folder(self, folder: str) -> None:
        import runpy

        _put_first_on_path(folder)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]

    def _run_script(self, main: ModuleType) -> None:
        sys.argv = [self.name, *self.arguments]
        path = os.path.abspath(self.name)
        if Path(path).is_dir():
            self._run_folder(self.name)
            return
        _put_first_on_path(str(Path(path).resolve().parent))
        try:
            source = Path(path).read_bytes()
        except OSError as error:
            print(
                f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr
            )
            raise SystemExit(2) from None
        main.__file__ = path
        main.__loader__ = SourceFileLoader("__main__", path)
        main.__cached__ = None  # type: ignore[attr-defined]
        exec(compile(_with_batch_sizes(source, path), path, "exec", dont_inherit=True), main.__dict__)


def _with_batch_sizes(source: bytes, path: str) -> bytes | ast.Module:
    """Return the script, in a replay with the batch sizes of several ranks."""
    times = int(os.environ.get("COMPOSESIM_BATCH_TIMES") or 1)
    if times == 1:
        return source
    from .replay.batch_sizes import multiplied, multiplied_arguments

    sys.argv[1:] = multiplied_arguments(sys.argv[1:], times)
    return multiplied(source, path, times)


def run(program: UserProgram) -> None:
    """
    Run `program` as the rank of this process, and raise what the program raises, so that the interpreter exits as after
    any script.
    """
    process.set_command_line(program.command)
    events = EventLog.from_environment(os.environ)
    events = events.bind(rank=int(os.environ["RANK"]), generation=int(os.environ["COMPOSESIM_GENERATION"]))
    emulate.install()
    gpu_limits.install()
    instrument.begin(events, first=os.environ["LOCAL_RANK"] == "0")
    teardown.install()
    sys.breakpointhook = _breakpoint_for(events)
    forget(shadowed_modules(program.folder))
    run_alone(program, events, end=instrument.end)


def run_alone(program: UserProgram, events: EventLog, *, end: Callable[[], None] = lambda: None) -> None:
    """Run `program` without observers, and report how it ended, after calling `end`."""
    exit_code, said = 0, ""
    try:
        program.run()
    except SystemExit as error:
        exit_code = _exit_code(error.code)
        said = error.code[:_LONGEST_WORDS] if isinstance(error.code, str) else ""
        raise
    except BaseException as error:
        gap = failures.gap(error)
        hint = failures.HINT if gap else hint_for(error)
        _hide_our_frames(error)
        _report_exception(events, error, hint, gap)
        exit_code = 130 if isinstance(error, KeyboardInterrupt) else 1
        raise
    finally:
        end()
        events.emit("script-ended", exit_code=exit_code, message=said)


def _breakpoint_for(events: EventLog) -> Callable[..., Any]:
    def breakpointhook(*arguments: Any, **options: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*arguments, **options)
        from .debugging import debugger

        return debugger.stop_at(sys._getframe(1), events)

    return breakpointhook


def _exit_code(code: Any) -> int:
    """Return the exit code that Python uses for `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _report_exception(events: EventLog, error: BaseException, hint: str, gap: str) -> None:
    report = traceback.TracebackException(type(error), error, error.__traceback__)
    text = "".join(report.format())
    events.emit("exception", type=type(error).__name__, message=str(report), traceback=text, hint=hint, gap=gap)


def _hide_our_frames(error: BaseException) -> None:
    """Remove our frames from the tracebacks of an exception and those that led to it, and again before they are printed."""
    hook = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        trace = _without_our_frames(trace)  # raising it again has added some
        hook(kind, value.with_traceback(trace), trace)

    sys.excepthook = excepthook
    pending, seen = [error], {id(error)}
    while pending:
        each = pending.pop()
        each.__traceback__ = _without_our_frames(each.__traceback__)
        for other in (each.__cause__, each.__context__, *getattr(each, "exceptions", ())):
            if isinstance(other, BaseException) and id(other) not in seen:
                pending.append(other)
                seen.add(id(other))


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames; a loop, because it may be as deep as the recursion that ended the script."""
    first = last = None
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            if last is None:
                first = trace
            elif last.tb_next is not trace:  # setting it walks everything that follows
                last.tb_next = trace
            last = trace
        trace = trace.tb_next
    if last is not None and last.tb_next is not None:
        last.tb_next = None
    return first


def _put_first_on_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11, PYTHONSAFEPATH
        sys.path.insert(0, folder)


def main(arguments: list[str]) -> None:
    """Run the rank of this new Python."""
    process.die_with(os.getppid())
    instrument.install()
    run(UserProgram.from_arguments(arguments))
