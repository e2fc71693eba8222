"""Check a script: run it at world size N, replay the first steps at world size 1, and judge both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

from compose_sim.app.listener import Listener, ProgressListener
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.core.checks import Case
from compose_sim.core.checks.rules.replays import needs_alone, reason_against, was_replayed
from compose_sim.core.checks.run import chosen, coverage, run_checks, why_inconclusive
from compose_sim.core.checks.source import find_hints, uses_hashes
from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import Cause, Report
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.verdict.verdict import EXIT_CODES
from compose_sim.engine.host.script_sources import read_sources
from compose_sim.engine.protocol import Engine
from compose_sim.engine.registry import shared
from compose_sim.engine.run_folder.check_inputs import read_case, read_observed
from compose_sim.engine.run_folder.finished import delete
from compose_sim.errors import ComposesimError, SpecError

DEFAULTS = {  # of the cluster, as flags take them
    "hang_timeout": "15s",  # a check ends when a hang is diagnosed; `up` warns, and waits longer
}
_NEED_A_REPLAY = ("loss-scale", "matches-single")
_RECORD = "record"  # in the run's folder, writable for all nodes and cleared by a new run of the same name
_REPLAYS_TAKE_S = 120.0  # in addition to a multiple of the time that the run itself took


def check_request(request: Request) -> Request:
    """Return the request with the defaults of a check: no patience with hangs, no services.

    Raises SpecError if the request leaves nothing to check, so that such a CI job does not pass.
    """
    spec = request.spec
    if spec.recipe != "ddp":
        raise SpecError(
            f"recipe '{spec.recipe}' cannot be checked: the checks judge torch.distributed scripts",
            hint="composesim check SCRIPT, or composesim up for the exit code alone",
        )
    if not (spec.script or spec.module):
        raise SpecError(
            f"no script was named, neither as an argument nor in a spec file in '{request.folder}'",
            hint="composesim check SCRIPT",
        )
    if not chosen(spec.check.only, spec.check.skip):
        raise SpecError("--only and --skip leave no checks to run", hint="composesim check SCRIPT")
    ours = ClusterSpec.model_validate(DEFAULTS)
    left_out = {name: getattr(ours, name) for name in DEFAULTS if name not in spec.model_fields_set}
    return replace(request.with_spec(**left_out, services=(), publish={}), isolates=True)


def check(session: Session, listener: Listener) -> Report:
    """Run a session, replay the first steps if a chosen check needs that, and return the report with all chosen checks."""
    settings, request = session.request.spec.check, session.request
    sources = read_sources(request.folder, str(request.spec.script or ""), _search_path(session))
    hints = tuple(find_hints(sources))
    for hint in hints:
        listener.progress(f"note: {hint}")
    if uses_hashes(sources):
        session.add_environment(COMPOSESIM_OWN_HASHES="1")
    names = chosen(settings.only, settings.skip)
    replays = any(name in names for name in _NEED_A_REPLAY)
    if replays or settings.steps:
        limit = {"COMPOSESIM_CHECK_STEPS": str(settings.steps)} if settings.steps else {}
        record = session.add_mount(session.folder.path / _RECORD, _RECORD, read_only=False)
        session.add_environment(COMPOSESIM_CHECK="record", COMPOSESIM_RECORD=record, **limit)
    else:
        session.add_environment(COMPOSESIM_CHECK="record")  # observers look closer, and nothing is kept for a replay

    def conclude(report: Report) -> Report:
        case = replace(read_case(session.folder.path, report), sources=sources)
        if settings.tolerance is not None:
            case = replace(case, tolerance=settings.tolerance)
        interrupted = False
        try:
            case = _with_replays(case, session, engine, listener, report) if replays else case
        except KeyboardInterrupt:  # the first run is worth a report even without a replay
            interrupted, case = True, replace(case, why_no_single="it was interrupted at world size 1")
            session.was_interrupted = True
        finally:
            session.folder.files.remove_tree(_RECORD)
        results = run_checks(case, only=settings.only, skip=settings.skip)
        found = coverage(results, only=settings.only, skip=settings.skip)
        report = _concluded(
            replace(
                report,
                checks=tuple(result.to_report() for result in results),
                coverage=found,
                hints=hints,
            )
        )
        if report.verdict == "passed":
            report = _inconclusive(
                report, why_inconclusive(case, results, found, only=settings.only, is_strict=settings.strict)
            )
        return replace(report, verdict="interrupted", exit_code=EXIT_CODES["interrupted"]) if interrupted else report

    with shared(session.engine) if replays else nullcontext() as engine:
        return session.run(listener, conclude=conclude)


def _search_path(session: Session) -> list[str]:
    """Return PYTHONPATH as ranks have it; only processes on this machine inherit it."""
    inherited = os.environ if session.plan.engine == "local" else {}
    return {**inherited, **session.plan.environment}.get("PYTHONPATH", "").split(os.pathsep)


def _with_replays(case: Case, session: Session, engine: Engine | None, listener: Listener, report: Report) -> Case:
    """Return the case with the observations of replays, or with the reason why there are none.

    The first replay gets the batches of all ranks; if it differs, one replay for each rank gets the batches of that rank. They
    run on `engine`, if there is one.
    """
    why = _why_no_replay(case)
    if why:
        return replace(case, why_no_single=why)
    listener.progress("Replaying the first steps at world size 1.")
    single, why = _replay("single", {}, session, engine, listener, report)
    case = replace(case, single=single, why_no_single=why)
    alone: dict[int, Observed] = {}
    for rank in sorted(case.observed.ranks) if needs_alone(case) else []:
        listener.progress(f"World size 1 differs: replaying the steps with the batches of rank {rank} only.")
        chosen_rank = {"COMPOSESIM_RECORD_RANK": str(rank)}
        observed, why = _replay(f"alone-{rank}", chosen_rank, session, engine, listener, report)
        if why or not observed:
            break
        alone[rank] = observed
    return replace(case, alone=alone)


def _why_no_replay(case: Case) -> str:
    is_teardown = case.verdict == "failed" and case.cause is not None and case.cause.kind == "teardown"
    if case.verdict != "passed" and not is_teardown:
        return f"the run {case.verdict}" if case.verdict in ("failed", "hung") else f"the run ended: {case.verdict}"
    return reason_against(case.observed)


def _replay(
    name: str,
    variables: Mapping[str, str],
    session: Session,
    engine: Engine | None,
    listener: Listener,
    report: Report,
) -> tuple[Observed | None, str]:
    """Return what a replay observed at world size 1, and the reason if it is not usable."""
    patience = _REPLAYS_TAKE_S + 4 * (report.timings.total_s or 0.0)
    request = session.request.with_spec(nodes=1, nproc_per_node=1, keep=False, subnet=None, timeout=patience)
    replay = None
    try:
        replay = Session(request, name=f"{session.name}-{name}", engine=engine)
        record = replay.add_mount(session.folder.path / _RECORD, _RECORD)
        replay.add_environment(COMPOSESIM_CHECK="replay", COMPOSESIM_RECORD=record, **variables)
        result = replay.run(ProgressListener(listener))
        observed = read_observed(replay.folder.path)
    except ComposesimError as error:
        return None, f"there was no run at world size 1: {error.message}"
    finally:
        if replay is not None and replay.folder.files.exists():
            delete(replay.folder)
    if result.verdict == "interrupted":
        raise KeyboardInterrupt
    if was_replayed(observed):
        return observed, ""
    return observed, f"at world size 1 the script {result.verdict}: {result.cause.first_line}" if result.cause else ""


def _concluded(report: Report) -> Report:
    """Return the report with the verdict of run and checks together.

    The first failed check that follows from no other is the cause of a failure; a crash after the training is only a warning.
    """
    verdict, cause = report.verdict, report.cause
    if verdict == "failed" and cause and cause.kind == "teardown":
        verdict, cause = "passed", None
    first = next((result for result in report.checks if result.status == "failed" and not result.follows), None)
    if verdict == "passed" and first:
        verdict, cause = "failed", Cause(kind="check", message=f"{first.id}: {first.detail}")
    return replace(report, verdict=verdict, exit_code=EXIT_CODES[verdict], cause=cause)


def _inconclusive(report: Report, why: str) -> Report:
    """Return the report with the verdict that nothing may be concluded, if there is a reason for that."""
    if not why:
        return report
    cause = Cause(kind="coverage", message=why)
    return replace(report, verdict="inconclusive", exit_code=EXIT_CODES["inconclusive"], cause=cause)
