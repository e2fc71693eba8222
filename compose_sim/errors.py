"""Define the errors that composesim raises, and the exit code of each.

    ComposesimError                     exit code
    ├── SpecError                       2   the request is wrong or cannot be met
    ├── EnvironmentMissingError         4   no engine, no image, no Python with torch
    │   └── ResourceError               4   no space, no file descriptors, no memory
    ├── RunError                        1   a function failed on a rank, or its run did not pass
    └── EngineError                     3   an engine failed
        ├── EngineSilentError           4   an engine is there, but does not answer
        ├── DaemonError                 3   a daemon cannot be reached, or refused a request
        └── CommandError                3   a program that an engine started exited with an error

A message says what happened and quotes the value; the evidence shows why; the hint is a command to type.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class ComposesimError(Exception):
    """An expected failure. The command line prints the three parts, without a traceback of composesim."""

    exit_code = 1

    def __init__(self, message: str, *, evidence: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence
        self.hint = hint
        for note in (evidence, f"Try: {hint}" if hint else ""):
            if note:
                self.add_note(note)  # for Python, which prints notes below the message

    def to_dict(self) -> dict[str, object]:
        """Return the error as JSON values."""
        parts = {"message": self.message, "evidence": self.evidence, "hint": self.hint}
        return {**parts, "exit_code": self.exit_code}


class SpecError(ComposesimError):
    """The request is wrong, or cannot be met on this machine."""

    exit_code = 2


class EnvironmentMissingError(ComposesimError):
    """An engine, an image or a Python with torch is missing, so that the run cannot start."""

    exit_code = 4


class ResourceError(EnvironmentMissingError):
    """A disk is full or read-only, or this process can get no more file descriptors or memory."""


class OutOfTimeError(Exception):
    """What a run left takes more CPU time to judge than it may; `engine/run_folder/judging_time.py` raises it."""

    def __str__(self) -> str:
        return "not judged: what the run left takes too long to read"


# What the number of an OSError means, and a command that shows more.
_RESOURCES = {
    errno.ENOSPC: ("the disk is full", "df -h {path}; df -i {path}"),
    errno.EDQUOT: ("the disk quota is used up", "quota -s"),
    errno.EFBIG: ("a file would exceed the limit of this process", "ulimit -f unlimited"),
    errno.EROFS: ("the file system is read-only", "findmnt -T {path}; composesim --runs-dir FOLDER …"),
    errno.EMFILE: ("this process can open no more files", "ulimit -n 4096"),
    errno.ENFILE: ("this machine can open no more files", "sysctl fs.file-nr fs.file-max"),
    errno.EAGAIN: ("this user can start no more processes or threads", "ulimit -u; ulimit -v"),
    errno.ENOMEM: ("there is no memory left", "free -h; ulimit -v"),
}


def resource_error(error: BaseException) -> ResourceError | None:
    """Return the ResourceError that an exception stands for; None if it means something else."""
    number, text = getattr(error, "errno", None), str(error)
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif text == "can't start new thread":
        number = errno.EAGAIN
    elif number is None and isinstance(error, OSError | ImportError):  # such as shutil.Error, which lists many errors
        number = next((each for each in _RESOURCES if os.strerror(each).lower() in text.lower()), None)
    if text == "Could not determine home directory.":
        return ResourceError("this user has no home folder", evidence=text, hint="HOME=/tmp composesim …")
    if number not in _RESOURCES:
        return None
    what, hint = _RESOURCES[number]
    path = str(getattr(error, "filename", None) or "")
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    message = f"{what}: '{path}' cannot be written or opened" if path else what
    return ResourceError(message, evidence=text[:300], hint=hint.format(path=folder))


def missing_dependency(error: ModuleNotFoundError) -> EnvironmentMissingError | None:
    """Return the error that names a package missing from our own Python; None if the module is composesim's or Python's."""
    from importlib.metadata import PackageNotFoundError, requires  # takes 15 ms

    package = (error.name or "").partition(".")[0]
    if package in ("", "compose_sim", *sys.stdlib_module_names):
        return None
    try:
        words = [f"'{line}'" for line in requires("composesim") or () if "extra ==" not in line]
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        words = [package]
    message = f"composesim needs the package '{package}', which {sys.executable} does not have"
    return EnvironmentMissingError(message, hint=f"{sys.executable} -m pip install {' '.join(words)}")


@contextmanager
def resource_errors() -> Iterator[None]:
    """Raise ResourceError in place of an exception that stands for one."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        named = resource_error(error)
        if named is None:
            raise
        raise named from error


class EngineError(ComposesimError):
    """An engine exists, but could not do what was requested."""

    exit_code = 3


class EngineSilentError(EngineError):
    """An engine is there, but does not answer any more."""

    exit_code = 4


class DaemonError(EngineError):
    """A daemon cannot be reached, or refused a request."""


class CommandError(EngineError):
    """A program exited with a status other than 0."""

    def __init__(self, argv: Sequence[str], status: int, output: str, *, hint: str = "") -> None:
        tail = "\n".join(output.strip().splitlines()[-12:])
        super().__init__(f"'{' '.join(argv[:4])}' exited with status {status}", evidence=tail, hint=hint)
        self.argv = tuple(argv)
        self.status = status
        self.output = output


class RunError(ComposesimError):
    """A function raised an exception on a rank, or the run did not pass for another reason, such as a hang."""

    def __init__(
        self, message: str, *, rank: int | None = None, node: str | None = None, traceback: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, evidence=traceback, hint=hint)
        self.rank = rank  # None if no single rank is the cause, as in a timeout
        self.node = node
        self.traceback = traceback  # of the rank's exception
