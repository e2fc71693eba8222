"""Run and check scripts and functions from Python: `composesim.run` and `composesim.check`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from compose_sim.app.function_run import RankValues, run_function
from compose_sim.app.listener import Listener, OutputListener, QuietListener
from compose_sim.app.request import Request, read_request
from compose_sim.app.session import Session
from compose_sim.core.report.report import Report
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.request.spec_file import keys_at
from compose_sim.core.request.validation_errors import problems_of
from compose_sim.errors import SpecError

T = TypeVar("T")
Program = str | os.PathLike[str]
Nodes = int | Sequence[Mapping[str, Any]]
Output = Callable[[str], object]


@overload
def run(
    program: Program | None = None,
    /,
    *,
    args: Sequence[Any] = (),
    nodes: Nodes | None = None,
    nproc_per_node: int | None = None,
    engine: str | None = None,
    spec: ClusterSpec | None = None,
    file: Program | None = None,
    output: Output | None = None,
    **fields: Any,
) -> Report: ...


@overload
def run(
    program: Callable[..., T],
    /,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    nodes: Nodes | None = None,
    nproc_per_node: int | None = None,
    engine: str | None = None,
    spec: ClusterSpec | None = None,
    file: Program | None = None,
    output: Output | None = None,
    **fields: Any,
) -> RankValues[T]: ...


def run(
    program: Program | Callable[..., Any] | None = None,
    /,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    spec: ClusterSpec | None = None,
    file: Program | None = None,
    output: Output | None = None,
    **fields: Any,
) -> Report | RankValues[Any]:
    """
    Run a script, or a function, on every rank of a simulated cluster, and wait for the run to end.

    A script returns the report of the run, also if it failed: look at `report.verdict`. Without a program, the spec file's
    program runs, or else the recipe's example.

    A function is called on every rank with `args` and `kwargs`, and what it returned is returned as a list by rank, with the
    report as `.report`. It runs as a script does: `RANK`, `WORLD_SIZE` and so on are set, and it calls `init_process_group`
    itself. A function of an importable module is imported by the ranks; one of a notebook, of a script that Python runs or of
    another function is pickled, with all that it refers to, by cloudpickle. Return values are pickled too, and loading a pickle
    may execute code: call only functions that you would also call in this process.

    Args:
        program: The script's path, or a function.
        args: Arguments of the script or the function.
        kwargs: Keyword arguments of the function.
        spec: Fields of the cluster, as one value.
        file: The spec file to read. The default is `composesim.yaml`, or `pyproject.toml`, in the working directory, if it exists.
        output: Called with each line that a rank prints and each line about the progress of the run, such as `print`.
        fields: Fields of ClusterSpec, such as `nodes=4`, `nproc_per_node=2`, `engine="local"` or `timeout="10m"`. They replace
            those of `spec`, which replace those of the file.

    Raises:
        SpecError: An argument or the file is wrong, or the request cannot be met on this machine.
        EnvironmentMissingError: No engine, image or Python with torch can run it.
        EngineError: The engine could not start it.
        RunError: The function failed on a rank; see `.rank`, `.node` and `.traceback`. Or the run hung or timed out.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended the run. The nodes are removed.
    """
    listener = _listener(output)
    if callable(program):
        request = _request(fields, spec, file)
        return run_function(program, args, kwargs or {}, request, listener)
    if kwargs is not None:
        raise SpecError("kwargs: a script takes no keyword arguments", hint="args=['--epochs', 3]")
    request = _request({**_program(program, args), **fields}, spec, file)
    session = Session(request)
    return _unless_interrupted(session, session.run(listener))


def check(
    program: Program | None = None,
    /,
    *,
    args: Sequence[Any] = (),
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    steps: int | None = None,
    tolerance: float | None = None,
    nodes: Nodes | None = None,
    nproc_per_node: int | None = None,
    engine: str | None = None,
    spec: ClusterSpec | None = None,
    file: Program | None = None,
    output: Output | None = None,
    **fields: Any,
) -> Report:
    """
    Check the distributed code of a script, as `composesim check` does, and return the report with the checks.

    A check that failed makes the verdict "failed"; each result in `report.checks` has an id, a status, a detail and a fix.

    Args:
        program: The script's path. Use `module="package.train"` for a module.
        args: Arguments of the script.
        only: Ids of the checks to run.
        skip: Ids of the checks to leave out.
        steps: End the script after this number of optimizer steps.
        tolerance: Largest relative difference from world size 1.
        nodes: The number of nodes, or a list with the settings of each.
        nproc_per_node: The number of ranks on each node.
        engine: What runs the nodes.
        spec: As for `run`.
        file: As for `run`.
        output: As for `run`.
        fields: As for `run`.

    Raises:
        SpecError: An argument or the file is wrong, or nothing is left to check.
        EnvironmentMissingError: No engine, image or Python with torch can run it.
        EngineError: The engine could not start it.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended the check. The nodes are removed.
    """
    from compose_sim.app.check import check as check_session  # with all checks, which `run` has time to import later
    from compose_sim.app.check import check_request

    settings = {"only": only, "skip": skip, "steps": steps, "tolerance": tolerance}
    given = {name: value for name, value in settings.items() if value is not None}
    cluster = {"nodes": nodes, "nproc_per_node": nproc_per_node, "engine": engine}
    all_fields = {**_program(program, args), **cluster, **({"check": given} if given else {}), **fields}
    session = Session(check_request(_request(all_fields, spec, file)))
    return _unless_interrupted(session, check_session(session, _listener(output)))


def _program(program: Program | None, args: Sequence[Any]) -> dict[str, Any]:
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in args]
    named = {} if program is None else {"script": os.fspath(program)}
    return {**named, **({"args": words} if words or named else {})}


def _request(fields: Mapping[str, Any], spec: ClusterSpec | None, file: Program | None) -> Request:
    """Return the request of these fields; raise SpecError that names the argument."""
    # By their names in a spec file: `with` is a keyword of Python.
    own = {"with" if name == "services" else name: value for name, value in fields.items() if value is not None}
    given = {**(spec.model_dump(by_alias=True, exclude_unset=True) if spec else {}), **own}
    try:
        ClusterSpec.model_validate(given)
    except ValidationError as error:
        text = problems_of(error, keys_at)[0].with_key
        text = text.replace("unknown key", "unknown argument").replace("with:", "services:", 1)
        raise SpecError(text, hint="help(composesim.run)") from None
    return read_request(given, file=None if file is None else Path(file))


def _listener(output: Output | None) -> Listener:
    return QuietListener() if output is None else OutputListener(output)


def _unless_interrupted(session: Session, report: Report) -> Report:
    if session.was_interrupted:
        raise KeyboardInterrupt
    return report
