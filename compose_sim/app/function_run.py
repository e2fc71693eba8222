"""Run a Python function on every rank, and collect the return values."""

from __future__ import annotations

import inspect
import json
import linecache
import os
import secrets
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle

from compose_sim.app.listener import Listener
from compose_sim.app.request import Request, new_name
from compose_sim.app.session import Session
from compose_sim.core.plan.model import Mount, Program
from compose_sim.core.report.report import Cause, Report
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import RunError, SpecError

T = TypeVar("T")

_PROGRAM = "composesim.function"  # the name in node/rank/function_call.py


class RankValues(list[T]):
    """What a function returned on each rank, in rank order."""

    def __init__(self, values: Iterable[T], report: Report) -> None:
        """Hold the values and the `report` of the run."""
        super().__init__(values)
        self.report = report


def run_function(
    function: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any], request: Request, listener: Listener
) -> RankValues[T]:
    """Run a function on every rank of a request. Raises RunError if a rank fails, or the run does not pass for another reason."""
    name = f"{getattr(function, '__qualname__', type(function).__qualname__)}()"
    if request.spec.recipe != "ddp":
        raise SpecError(
            f"recipe '{request.spec.recipe}' runs scripts, and {name} is a function",
            hint=f"composesim.run('train.py', recipe='{request.spec.recipe}')",
        )
    call = f"call-{secrets.token_hex(4)}"  # a new name: an earlier run of the same name may have left values
    session = Session(_request(request, name, call))
    if session.plan.owner_ids[0] != os.geteuid():
        raise SpecError(
            f"nodes run as the user '{session.plan.user_name}', and root would load what {name} returns there",
            evidence="loading a value can execute code",
            hint=f"sudo -u {session.plan.user_name} python …",
        )
    shared = SafeFolder(session.folder.path / "shared")
    files = SafeFolder(shared.path / call)
    try:
        _write_call(files, function, args, kwargs, name=name)
        files.make_folder("values", session.plan.owner_ids)  # where ranks write
        report = session.run(listener)
        if session.was_interrupted:
            raise KeyboardInterrupt
        if report.verdict != "passed":
            raise _error(report)
        return RankValues(_read_values(files, report, name), report)
    finally:
        with suppress(OSError, SpecError):
            shared.remove_tree(call)


def _request(request: Request, name: str, call: str) -> Request:
    """Return a request that runs the function instead of the program that the spec file names."""
    folder = str(request.folder)
    mounts = (Mount(source=folder, target=folder),)
    run = new_name(request.spec.model_copy(update={"script": name.rpartition(".")[2], "module": None}))
    return replace(
        request.with_spec(name=run, script=None, module=None, args=()),
        program=Program(target=_PROGRAM, is_module=True, arguments=(call,), folder=folder, mounts=mounts),
        label=name,
    )


def _write_call(
    files: SafeFolder, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, name: str
) -> None:
    """Write what a rank needs to call the function: the pickle, the library that reads it, and where to import from."""
    try:
        data = cloudpickle.dumps((function, tuple(args), dict(kwargs)), protocol=5)
    except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
        raise SpecError(
            f"{name} or its arguments cannot be pickled: {error}",
            hint="create such objects inside the function, or pass what it needs to create them",
        ) from None
    files.replace("call.pickle", data)
    library = Path(cloudpickle.__file__).parent  # nodes need the very version that pickled the function
    files.copy_tree(library, "cloudpickle", leave_out=("__pycache__",))
    about = {
        "name": name,
        "python": sys.version_info[:2],
        "by_value": b"cloudpickle.cloudpickle" in data,  # it holds bytecode, which one version of Python can load
        "path": [entry for entry in map(os.path.abspath, sys.path) if Path(entry).is_dir() and not _is_library(entry)],
        "sources": _sources(function),
    }
    files.replace("call.json", json.dumps(about))


def _sources(function: Callable[..., Any]) -> dict[str, list[str]]:
    """Return the source of a function that has no file, such as one of a notebook, by the name that tracebacks give it."""
    try:
        file = inspect.getfile(inspect.unwrap(function))
    except TypeError:  # a callable object, or a function written in C
        return {}
    return {} if Path(file).is_file() else {file: linecache.getlines(file)}


def _is_library(path: str) -> bool:
    parts = Path(path).parts
    return path.startswith(sysconfig.get_path("stdlib")) or "site-packages" in parts or "dist-packages" in parts


def _error(report: Report) -> RunError:
    cause = report.cause or Cause(kind=report.verdict, message=f"the run {report.verdict}")
    rank, node, message = cause.rank, cause.node, cause.message
    place = f"rank {rank} on {node}: " if rank is not None and not message.startswith(("rank ", "node-")) else ""
    hint = f"composesim logs --run {report.run}"
    return RunError(f"{place}{message}", rank=rank, node=node, traceback=(cause.traceback or "").rstrip(), hint=hint)


def _read_values(files: SafeFolder, report: Report, name: str) -> list[Any]:
    """Return the values of the last round, by rank."""
    found = [file for file in files.files("values") if not file.endswith(".partial")]
    stored = {tuple(map(int, file.split("."))): f"values/{file}" for file in found}
    last = max((generation for generation, _ in stored), default=0)
    world_size = report.rounds[-1].world_size if report.rounds else report.world_size
    return [_read_value(files, stored.get((last, rank)), rank, name, report) for rank in range(world_size)]


def _read_value(files: SafeFolder, file: str | None, rank: int, name: str, report: Report) -> Any:
    hint = f"composesim logs --run {report.run}"
    if file is None:
        raise RunError(f"rank {rank} exited before {name} returned", rank=rank, hint=hint)
    try:
        return cloudpickle.loads(files.read_bytes(file, size=-1))
    except Exception as error:
        raise RunError(
            f"the value that {name} returned on rank {rank} cannot be loaded here: {error}", rank=rank, hint=hint
        ) from error
